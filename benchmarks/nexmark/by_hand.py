"""The queries as one writes them in PySpark, one streaming query each, where that can say them.

It cannot say q4: an average of what changes comes after a join and an aggregation, and Spark has no such chain but
for windows that close.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.nexmark.events import AUCTION, BID, LATENESS, PERSON


@dataclass(frozen=True)
class Sources:
    """What a query by hand reads: topics as streams of parsed rows, and the side input as a table."""

    topic: Callable[[str], DataFrame]
    side_input: Callable[[], DataFrame]

    def in_time(self, topic: str) -> DataFrame:
        return self.topic(topic).withWatermark("at", LATENESS)


def q0(sources: Sources) -> DataFrame:
    return sources.topic(BID)


def q1(sources: Sources) -> DataFrame:
    return sources.topic(BID).withColumn("price", F.expr("CAST(0.908 * price AS DECIMAL(23,3))"))


def q2(sources: Sources) -> DataFrame:
    return sources.topic(BID).where("auction % 123 = 0").select("auction", "price")


def q3(sources: Sources) -> DataFrame:
    offered = sources.topic(AUCTION).where("category = 10").select(F.col("id").alias("auction"), "seller")
    sellers = sources.topic(PERSON).where("state IN ('OR', 'ID', 'CA')").select("id", "name", "city", "state")
    return offered.join(sellers, F.col("seller") == F.col("id")).drop("id")


def q5(sources: Sources) -> DataFrame:
    span = F.window("at", "10 seconds", "2 seconds").alias("span")
    counts = sources.in_time(BID).groupBy("auction", span).agg(F.count(F.lit(1)).alias("bids"))
    one = F.struct("auction", "bids")
    together = counts.groupBy("span").agg(F.max("bids").alias("most"), F.collect_list(one).alias("all"))
    hottest = together.select("span", F.explode(F.filter("all", lambda each: each.bids == F.col("most"))).alias("one"))
    return hottest.select("one.*", F.col("span.start").alias("start"), F.col("span.end").alias("end"))


def q7(sources: Sources) -> DataFrame:
    span = F.window("at", "10 seconds").alias("span")
    highest = sources.in_time(BID).groupBy(span).agg(F.max("price").alias("highest"))
    bids = sources.in_time(BID)
    inside = (F.col("at") >= F.col("span.start")) & (F.col("at") < F.col("span.end"))
    both = bids.join(highest, (F.col("price") == F.col("highest")) & inside)
    return both.select(*bids.columns, F.col("span.start").alias("window_start"), F.col("span.end").alias("window_end"))


def q8(sources: Sources) -> DataFrame:
    span = F.window("at", "10 seconds").alias("span")
    joined = sources.in_time(PERSON).groupBy("id", "name", span).agg(F.count(F.lit(1)))
    sellers = sources.in_time(AUCTION).groupBy("seller", span).agg(F.count(F.lit(1)))
    both = joined.alias("p").join(sellers.alias("a"), F.expr("p.id = a.seller AND p.span = a.span"))
    return both.selectExpr("id", "name", "p.span.start AS window_start", "p.span.end AS window_end")


def q11(sources: Sources) -> DataFrame:
    span = F.session_window("at", "10 seconds").alias("span")
    return _counted(sources.in_time(BID).groupBy("bidder", span))


def q12(sources: Sources) -> DataFrame:
    now = sources.topic(BID).withColumn("now", F.current_timestamp()).withWatermark("now", "0 seconds")
    return _counted(now.groupBy("bidder", F.window("now", "10 seconds").alias("span")))


def q13(sources: Sources) -> DataFrame:
    described = sources.topic(BID).join(sources.side_input(), F.expr("auction % 10000 = key"))
    return described.select("auction", "bidder", "price", "at", "value")


def _counted(grouped: object) -> DataFrame:
    counted = grouped.agg(F.count(F.lit(1)).alias("bids"))  # type: ignore[attr-defined]
    start, end = F.col("span.start").alias("window_start"), F.col("span.end").alias("window_end")
    return counted.select("bidder", start, end, "bids")


BY_HAND = {way.__name__: way for way in (q0, q1, q2, q3, q5, q7, q8, q11, q12, q13)}
KEYS = {"q8": ["id"], "q11": ["bidder"], "q12": ["bidder", "window_start"]}
"""By what the records of a result are keyed, where that is not the auction."""
UPDATES = frozenset({"q12"})
"""Those whose rows come out as they change: a window of the clock on the wall would wait for a later bid to close."""
