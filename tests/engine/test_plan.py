"""A topology analysed before anything runs: what each node becomes, and every problem with file and line."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace import topology as hr
from headrace.config.run import RunConfig
from headrace.engine.calls.windows import windowed
from headrace.engine.plan.planner import PlannedQuery, plan_topology
from headrace.errors import PlanError, Unreachable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)

DDL = "id STRING, card STRING, amount DECIMAL(12,2), at TIMESTAMP"
HERE = "test_plan.py"


def new_app() -> hr.App:
    return hr.App("fraud", prefix=f"{uuid.uuid4().hex[:8]}.")


def payments_of(app: hr.App) -> hr.Topic:
    return app.topic("payments", DDL, key="card", event_time="at", lateness="1 minute")


def planned(app: hr.App, spark: SparkSession, config: RunConfig) -> Mapping[str, PlannedQuery]:
    return {query.node.name: query for query in plan_topology(app.topology(), spark, config)}


def problems(app: hr.App, spark: SparkSession, config: RunConfig) -> list[str]:
    with pytest.raises(PlanError) as told:
        plan_topology(app.topology(), spark, config)
    return [f"{Path(problem.file).name}: {problem.message}; {problem.next_step}" for problem in told.value.problems]


# ---- what nodes become


def test_nodes_downstream_read_the_topic_with_the_columns_that_were_analysed(
    spark: SparkSession, config: RunConfig
) -> None:
    app = new_app()
    payments_of(app)

    @app.step
    def large(payments: DataFrame) -> DataFrame:
        return payments.filter("amount > 100")

    @app.stream(key="card")
    def bursts(large: DataFrame) -> DataFrame:
        return windowed(large, hr.tumbling("1 minute")).agg(n=hr.count(), total=hr.sum("amount"))

    @app.stream(key=["card", "hour"])
    def hours(bursts: DataFrame) -> DataFrame:
        counted = windowed(bursts, hr.tumbling("1 hour"), emit="changes").agg(n=hr.sum("n"))
        return counted.withColumnRenamed("window_start", "hour")

    @app.view(key=["card", "window_start"])
    def spend(payments: DataFrame) -> DataFrame:
        return windowed(payments, hr.tumbling("1 hour")).agg(total=hr.sum("amount"))

    @app.view(key="card")
    def latest(payments: DataFrame) -> DataFrame:
        return payments.selectExpr("card", "amount", "amount IS NULL AS _deleted")

    queries = planned(app, spark, config)
    assert list(queries) == ["bursts", "hours", "spend", "latest"]
    assert [query.output_mode for query in queries.values()] == ["append", "update", "update", "update"]
    assert queries["bursts"].output_schema.ddl == (
        "card STRING, window_start TIMESTAMP, window_end TIMESTAMP, n BIGINT, total DECIMAL(22,2)"
    )
    assert queries["hours"].output_schema.ddl == "card STRING, hour TIMESTAMP, window_end TIMESTAMP, n BIGINT"
    assert queries["latest"].output_schema.names == ("card", "amount")
    assert queries["latest"].frame.columns == ["card", "amount", "_deleted"]
    assert queries["bursts"].frame.columns == ["topic", "key", "value", "headers", "timestamp", "_order"]
    assert [reject.topic for reject in queries["bursts"].rejects] == [f"{app.prefix}payments.rejected"]
    assert [reject.topic for reject in queries["hours"].rejects] == [f"{app.prefix}bursts.rejected"]
    assert queries["spend"].rejects == ()
    assert queries["spend"].feeds == (app.topology().nodes["payments"],)


def test_a_fingerprint_changes_with_what_state_depends_on_and_with_nothing_else(
    spark: SparkSession, config: RunConfig
) -> None:
    app = new_app()
    payments_of(app)
    from pyspark.sql import functions as F

    def add(name: str, function: Callable[[DataFrame], DataFrame]) -> None:
        def node(payments: DataFrame) -> DataFrame:
            return function(payments)

        node.__name__ = name
        app.stream(node)

    add("minutes", lambda rows: windowed(rows, hr.tumbling("1 minute")).agg(n=hr.count()))
    add("filtered", lambda rows: windowed(rows.filter("amount > 1"), hr.tumbling("1 minute")).agg(n=hr.count()))
    add("longer", lambda rows: windowed(rows, hr.tumbling("2 minutes")).agg(n=hr.count()))
    add("more", lambda rows: windowed(rows, hr.tumbling("1 minute")).agg(n=hr.count(), m=hr.max("amount")))
    add("native", lambda rows: rows.groupBy(F.window("at", "1 minute"), "card").count().select("card", "count"))
    add("native2", lambda rows: rows.groupBy(F.window("at", "2 minutes"), "card").count().select("card", "count"))
    add("native3", lambda rows: rows.groupBy(F.session_window("at", "1 minute"), "card").count().select("count"))
    add("native4", lambda rows: rows.groupBy(F.session_window("at", "2 minutes"), "card").count().select("count"))
    add("plain", lambda rows: rows)
    add("projected", lambda rows: rows.select("card"))
    prints = {
        name: json.dumps({**query.fingerprint, "rejects": []}, sort_keys=True)
        for name, query in planned(app, spark, config).items()
    }
    assert prints["minutes"] == prints["filtered"]
    assert prints["plain"] == prints["projected"]
    assert len(set(prints.values())) == len(prints) - 2


def test_latency_real_time_takes_what_it_can_run_and_writes_rejects_among_the_rows(
    spark: SparkSession, config: RunConfig
) -> None:
    app = new_app()
    payments_of(app)

    @app.stream(key="card", guarantee="at-least-once", latency="real-time")
    def large(payments: DataFrame) -> DataFrame:
        return payments.filter("amount > 100")

    query = planned(app, spark, config)["large"]
    assert (query.output_mode, query.rejects) == ("update", ())
    assert "Union" in query.frame._jdf.queryExecution().analyzed().toString()

    @app.stream(key="card")
    def copied(payments: DataFrame) -> DataFrame:
        return payments

    @app.stream(key="card", guarantee="at-least-once", latency="real-time")
    def once(payments: DataFrame) -> DataFrame:
        return payments.dropDuplicates(["card"])

    queries = planned(app, spark, config)
    assert len(queries["copied"].rejects) == 1
    assert "Union" not in queries["once"].frame._jdf.queryExecution().analyzed().toString()
    alone = new_app()
    payments_of(alone)
    alone.stream(guarantee="at-least-once", latency="real-time")(once.function)
    assert "it is the only reader of payments" in problems(alone, spark, config)[0]


# ---- what does not fit


def test_every_problem_of_every_node_is_told_with_file_and_line(spark: SparkSession, config: RunConfig) -> None:
    from pyspark.sql import functions as F

    app = new_app()
    payments_of(app)
    declared: dict[str, str] = {}

    def bad(expected: str, **options: Any) -> Callable[[Callable[[DataFrame], Any]], None]:
        def declare(function: Callable[[DataFrame], Any]) -> None:
            def node(payments: DataFrame) -> Any:
                return function(payments)

            node.__name__ = f"node{len(declared)}"
            declared[node.__name__] = expected
            (app.view if options.pop("view", False) else app.stream)(**options)(node)

        return declare

    real_time: dict[str, Any] = {"latency": "real-time", "guarantee": "at-least-once"}
    bad("it returns None, not a DataFrame; end the function with `return rows`")(lambda rows: None)
    bad("it returns a int, not a DataFrame")(lambda rows: 1)
    bad("it returns hr.windowed(...) without an aggregate")(lambda rows: windowed(rows, hr.tumbling("1 minute")))
    bad("it returns a DataFrame that does not stream")(lambda rows: spark.range(1))
    bad("it returns a dict, and no channels are declared; declare them: channels=['eu']")(lambda rows: {"eu": rows})
    bad("it returns a DataFrame, and its channels are eu, us", channels=["eu", "us"])(lambda rows: rows)
    bad("it returns nothing for the channel 'us'", channels=["eu", "us"])(lambda rows: {"eu": rows})
    bad("undeclared channel 'odds'; did you mean 'odd'?", channels=["odd"])(lambda rows: {"odds": rows})
    bad("its key 'crad' is not a column of what it returns; did you mean 'card'?", key="crad")(lambda rows: rows)
    bad("its key 'all' is ARRAY<STRING>, which cannot be a key", key="all")(
        lambda rows: rows.select(F.array("card").alias("all"))
    )
    bad("its event time 'when' is not a column", event_time="when")(lambda rows: rows)
    bad("its event time 'card' is STRING; make it TIMESTAMP", event_time="card")(lambda rows: rows)
    bad("lateness= needs an event time", lateness="1 minute")(lambda rows: rows.drop("at"))
    bad("the column 'x' has no type")(lambda rows: rows.withColumn("x", F.lit(None)))
    bad("'m' has MAP<INT, STRING>, but the keys of a JSON object are strings")(
        lambda rows: rows.selectExpr("map(1, card) AS m")
    )
    bad("has the column 'CARD' and 'card'")(
        lambda rows: rows.withColumn("x", F.lit(1)).toDF("id", "card", "CARD", "at", "x")
    )
    bad("with name `crad` cannot be resolved. Did you mean one of the following? [")(lambda rows: rows.select("crad"))
    bad("Syntax error")(lambda rows: rows.filter("amount >"))
    bad("ZeroDivisionError: division by zero")(lambda rows: 1 / 0)
    bad("Queries with streaming sources must be executed with writeStream.start()")(lambda rows: rows.count())
    bad("Sorting is not supported on streaming")(lambda rows: rows.orderBy("at"))
    bad('until needs late="correct"')(lambda rows: windowed(rows, hr.sliding("1 minute"), until="1 day"))
    bad(".with_columns, and is returned from the node; move this to the next node")(
        lambda rows: windowed(rows, hr.tumbling("1 minute"), late="divert").agg(n=hr.count()).groupBy("card")
    )
    bad("cannot do explode() and its like")(
        lambda rows: (
            windowed(rows, hr.tumbling("1 minute"), late="divert")
            .agg(all=hr.collect("id"))
            .select("card", F.explode("all"))
        )
    )
    bad("cannot do a Python UDF")(
        lambda rows: (
            windowed(rows, hr.tumbling("1 minute"), late="divert")
            .agg(n=hr.count())
            .with_columns(x=F.udf(str.upper)("card"))
        )
    )
    bad("the output is a changelog, so the node needs a key; say key=['card', 'window_start']")(
        lambda rows: windowed(rows, hr.tumbling("1 minute"), late="correct", until="1 day").agg(n=hr.count())
    )
    bad("the key without 'window_start' does not identify one row", key="card")(
        lambda rows: windowed(rows, hr.session("1 minute"), emit="changes").agg(n=hr.count())
    )
    bad("the result of a window, and have no watermark; move this window to the next node")(
        lambda rows: windowed(
            windowed(rows, hr.sliding("1 minute")).agg(n=hr.count()).drop("at"), hr.tumbling("1 hour"), by="card"
        )
    )
    bad("its channel 'a' returns a windowed result; return it alone, and split it in the next node", channels=["a"])(
        lambda rows: {"a": windowed(rows, hr.tumbling("1 minute"), late="divert").agg(n=hr.count())}
    )
    bad('latency="real-time" cannot run Python code', key="id", **real_time)(
        lambda rows: windowed(rows, hr.sliding("1 minute"), emit="changes").agg(n=hr.count())
    )
    bad("streaming aggregations without watermark", key="card")(
        lambda rows: windowed(rows, hr.tumbling("1 minute"), emit="final").agg(n=hr.count()).groupBy("card").count()
    )
    bad("'_deleted' is int; make it BOOLEAN", view=True, key="card")(
        lambda rows: rows.selectExpr("card", "1 AS _deleted")
    )
    bad("order_by: 'att' is not a column", view=True, key="card", order_by="att")(lambda rows: rows)
    bad('latency="real-time" cannot run a Python UDF', **real_time)(lambda rows: rows.select(F.udf(str.upper)("card")))
    bad('latency="real-time" cannot run a join of two streams', **real_time)(
        lambda rows: rows.join(rows.select("id", F.lit(1).alias("one")), "id")
    )
    bad('latency="real-time" cannot run Python code (MapInArrow)', **real_time)(
        lambda rows: rows.mapInArrow(lambda batches: batches, "id STRING")
    )
    bad('latency="real-time" cannot run session windows', **real_time)(
        lambda rows: rows.groupBy(F.session_window("at", "1 minute")).count()
    )
    bad("emits a window's row whenever it changes", **real_time)(
        lambda rows: windowed(rows, hr.tumbling("1 minute")).agg(n=hr.count())
    )

    @app.stream
    def downstream_of_a_problem(node0: DataFrame) -> DataFrame:
        raise AssertionError("never called")

    told = problems(app, spark, config)
    for name, expected in declared.items():
        (found,) = [problem for problem in told if f"{name!r}:" in problem]
        assert expected in found
    assert len(told) == len(declared)
    assert all(problem.startswith(HERE) for problem in told)


def test_a_problem_points_at_the_line_it_came_from(spark: SparkSession, config: RunConfig) -> None:
    app = new_app()
    payments_of(app)

    @app.step
    def broken(payments: DataFrame) -> DataFrame:
        return payments.select("nothing")

    @app.stream
    def user(broken: DataFrame) -> DataFrame:
        return broken

    with pytest.raises(PlanError) as told:
        plan_topology(app.topology(), spark, config)
    (problem,) = told.value.problems
    assert Path(problem.file).read_text().splitlines()[problem.line - 1].strip() == 'return payments.select("nothing")'
    assert problem.message.startswith("stream 'user': A column")


def test_the_channel_of_late_rows_is_refused_while_nothing_writes_it(spark: SparkSession, config: RunConfig) -> None:
    app = new_app()
    payments_of(app)

    @app.stream(key="card")
    def bursts(payments: DataFrame) -> DataFrame:
        return payments

    @app.stream
    def tardy(rows: DataFrame = bursts.late) -> DataFrame:  # type: ignore[assignment]
        return rows

    assert "nothing writes bursts.late: 'bursts' diverts no late rows" in problems(app, spark, config)[0]


def test_windows_that_change_are_read_as_a_table(spark: SparkSession, config: RunConfig) -> None:
    app = new_app()
    payments_of(app)

    @app.stream(key=["card", "window_start"])
    def minutes(payments: DataFrame) -> Any:
        return windowed(payments, hr.tumbling("1 minute"), emit="changes").agg(n=hr.count())

    @app.view(key=["card", "window_start"])
    def many(minutes: Any) -> Any:
        return minutes.where("n > 5")

    @app.stream
    def nameless(payments: DataFrame) -> Any:
        return windowed(payments, hr.tumbling("1 minute"), emit="changes").agg(n=hr.count())

    @app.stream
    def reader(nameless: Any) -> Any:
        return nameless.changes

    (problem,) = problems(app, spark, config)
    assert "the output of nameless is a changelog, so nameless needs a key" in problem


def test_windows_that_change_are_known_by_more_than_their_card(spark: SparkSession, config: RunConfig) -> None:
    app = new_app()
    payments_of(app)
    minute = hr.tumbling("1 minute")

    @app.view(key="card")
    def newest(payments: DataFrame) -> Any:
        return windowed(payments, minute).agg(n=hr.count()).having("n > 1")

    @app.table(key="card")
    def corrected(payments: DataFrame) -> Any:
        return windowed(payments, minute, late="correct", until="1 day").agg(n=hr.count())

    @app.view(key="card")
    def closed(payments: DataFrame) -> Any:
        return windowed(payments, minute, emit="final").agg(n=hr.count())

    @app.view(key="card")
    def left_out(payments: DataFrame) -> Any:
        return windowed(payments, minute).agg(n=hr.count()).select("card", "n")

    @app.view(key=["card", "minute"])
    def derived(payments: DataFrame) -> Any:
        return windowed(payments, minute).agg(n=hr.count()).selectExpr("card", "minute(window_start) AS minute")

    @app.view(key="card", order_by="window_start")
    def last(payments: DataFrame) -> Any:
        return windowed(payments, minute, late="correct", until="1 day").agg(n=hr.count())

    @app.view(key="card", order_by="window_end")
    def last_by_end(payments: DataFrame) -> Any:
        return windowed(payments, minute).agg(n=hr.count()).select("card", "window_end", "n")

    @app.view(key="card", order_by="window_start")
    def last_that_holds(payments: DataFrame) -> Any:
        return windowed(payments, minute).agg(n=hr.count()).having("n > 1")

    told = problems(app, spark, config)
    by_window = 'for a row of each window, say key=["card", "window_start"]'
    by_order = 'for the newest window of each key, say key=["card"], order_by="window_start"'
    advice = {
        "newest": by_window,
        "corrected": f'{by_window}; for closed windows only, say emit="final"',
        "left_out": f"keep 'window_start' among the columns; {by_window}; {by_order}",
        "last_that_holds": by_window,
    }
    for problem, (name, advised) in zip(told, advice.items(), strict=True):
        assert f"{name!r}: several windows share its key: the key lacks 'window_start', so a change of an" in problem
        assert problem.endswith(f"; {advised}")


def test_ingestion_time_is_the_brokers_or_is_refused(spark: SparkSession, config: RunConfig) -> None:
    app = new_app()
    app.topic("appended", DDL, event_time=hr.ingestion_time())

    @app.stream
    def copied(appended: DataFrame) -> DataFrame:
        return appended

    assert planned(app, spark, config)["copied"].output_schema.names[-1] == "_timestamp"  # the topic is not there yet
    admin = AdminClient({"bootstrap.servers": config.kafka_address})
    name = f"{app.prefix}appended"
    for made in admin.create_topics([NewTopic(name, 1, 1)]).values():
        made.result(30)
    (problem,) = problems(app, spark, config)
    assert "its timestamps are the producer's (message.timestamp.type=CreateTime)" in problem
    with pytest.raises(Unreachable):
        plan_topology(
            app.topology(), spark, RunConfig(kafka="127.0.0.1:1", kafka_settings={"socket.timeout.ms": "1000"})
        )

    other = new_app()
    other.topic("appended", DDL, event_time=hr.ingestion_time())
    other.stream(copied.function)
    settings = {"message.timestamp.type": "LogAppendTime"}
    for made in admin.create_topics([NewTopic(f"{other.prefix}appended", 1, 1, config=settings)]).values():
        made.result(30)
    assert list(planned(other, spark, config)) == ["copied"]
