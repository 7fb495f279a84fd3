"""What is measured: each operator, Spark's own window where there is one, and the same logic key by key in pandas."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from headrace.operators.enriching import STREAM, TABLE, Enrich
from headrace.operators.hosting import arrow_schema, hosted
from headrace.operators.operator import Operator
from headrace.operators.sessions import Sessions
from headrace.operators.slices import Slices
from headrace.operators.sliding import SlidingWindows
from headrace.topology import Emit, Late
from headrace.topology.aggregates import count, sum

MINUTE = 60_000_000
BUCKETS = 8
AGGREGATES = (("n", count()), ("total", sum("amount")))
RESULT = "card STRING, n BIGINT, total DOUBLE"


def windowed(rows: DataFrame, kind: type[Any], **values: Any) -> DataFrame:
    operator: Operator = kind(
        by=("card",), time="at", aggregates=AGGREGATES, input=arrow_schema(rows.schema), late=Late.DIVERT, **values
    )
    return hosted(operator, {"": rows}, {"": [F.col("card")]}, BUCKETS).tagged()


def tumbling(rows: DataFrame) -> DataFrame:
    return windowed(rows, Slices, size_us=MINUTE, every_us=MINUTE)


def sliding(rows: DataFrame) -> DataFrame:
    return windowed(rows, SlidingWindows, size_us=5 * MINUTE)


def sliding_changes(rows: DataFrame) -> DataFrame:
    return windowed(rows, SlidingWindows, size_us=5 * MINUTE, emit=Emit.CHANGES)


def sessions(rows: DataFrame) -> DataFrame:
    return windowed(rows, Sessions, gap_us=2 * MINUTE)


def enriched(rows: DataFrame, table: DataFrame) -> DataFrame:
    operator = Enrich(
        on=(("card", "card"),), time="at", stream=arrow_schema(rows.schema), table=arrow_schema(table.schema)
    )
    keys = {STREAM: [F.col("card")], TABLE: [F.col("card")]}
    return hosted(operator, {STREAM: rows, TABLE: table}, keys, BUCKETS).rows()


def native_tumbling(rows: DataFrame) -> DataFrame:
    return rows.groupBy("card", F.window("at", "1 minute")).agg(F.count(F.lit(1)), F.sum("amount"))


def native_sessions(rows: DataFrame) -> DataFrame:
    return rows.groupBy("card", F.session_window("at", "2 minutes")).agg(F.count(F.lit(1)), F.sum("amount"))


def pandas_by_key(rows: DataFrame, processor: StatefulProcessor) -> DataFrame:
    return rows.groupBy("card").transformWithStateInPandas(
        statefulProcessor=processor, outputStructType=RESULT, outputMode="append", timeMode="EventTime"
    )


class TumblingByKey(StatefulProcessor):
    """A minute's count and sum of one key, kept in a map by window and emitted by a timer."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._windows = handle.getMapState("windows", "start BIGINT", "n BIGINT, total DOUBLE")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        for frame in rows:
            starts = frame["at"].astype("int64") // 60_000_000_000 * 60_000
            for start, group in frame.groupby(starts):
                place = (int(start),)
                n, total = self._windows.getValue(place) if self._windows.containsKey(place) else (0, 0.0)
                self._windows.updateValue(place, (n + len(group), total + float(group["amount"].sum())))
                self._handle.registerTimer(int(start) + 60_000)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        place = (expiredTimerInfo.getExpiryTimeInMs() - 60_000,)
        n, total = self._windows.getValue(place)
        self._windows.removeKey(place)
        yield pd.DataFrame({"card": [key[0]], "n": [n], "total": [total]})

    def close(self) -> None:
        pass


class SlidingByKey(StatefulProcessor):
    """The last five minutes of one key in a list; an event is answered as it comes, which is less than ours does."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._seen = handle.getListState("seen", "at BIGINT, amount DOUBLE")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        seen = [tuple(row) for row in self._seen.get()] if self._seen.exists() else []
        answers = []
        for frame in rows:
            arrived = zip(frame["at"].astype("int64") // 1000, frame["amount"], strict=True)
            for at, amount in sorted((int(at), float(amount)) for at, amount in arrived):
                seen.append((at, amount))
                inside = [value for when, value in seen if at - 5 * MINUTE < when <= at]
                answers.append((key[0], len(inside), float(pd.Series(inside).sum())))
        newest = max(at for at, _ in seen)
        self._seen.put([row for row in seen if row[0] > newest - 5 * MINUTE - 10_000_000])
        yield pd.DataFrame(answers, columns=["card", "n", "total"])

    def close(self) -> None:
        pass
