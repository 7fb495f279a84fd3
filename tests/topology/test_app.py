import inspect
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import headrace
import headrace.topology as hr
from headrace.topology import Duration, Format, Guarantee, Latency, Schema, StateStore

SCHEMA = "id STRING, card STRING, amount DECIMAL(12,2), at TIMESTAMP"


def test_a_topic_is_what_was_declared() -> None:
    app = hr.App("fraud", prefix="dev.")
    topic = app.topic("payments", SCHEMA, key="card", event_time="at", lateness="1 minute", record_columns=["_offset"])
    assert (topic.app_name, topic.name, topic.kind) == ("fraud", "payments", "topic")
    assert topic.topic_name == "dev.payments"
    assert topic.schema == Schema.of(SCHEMA)
    assert topic.key == ("card",)
    assert topic.event_time == hr.ColumnTime("at")
    assert topic.lateness == Duration.of("1 minute")
    assert topic.ahead == Duration.of("1 hour")
    assert topic.format is Format.JSON
    assert topic.record_columns == ("_offset",)
    assert topic.place.file == __file__
    assert app.problems() == ()


def test_a_full_topic_name_stands_without_the_prefix() -> None:
    app = hr.App("fraud", prefix="dev.")
    assert app.topic("payments", SCHEMA, topic="prod.payments-v1").topic_name == "prod.payments-v1"


def test_formats_without_a_schema_have_one_column() -> None:
    app = hr.App("logs")
    assert app.topic("lines", format="string").schema.ddl == "value STRING"
    assert app.topic("blobs", format="bytes", key="_key", record_columns=["_key"]).schema.ddl == "value BINARY"
    assert app.problems() == ()


def test_times_that_are_no_column_of_the_event() -> None:
    app = hr.App("fraud")
    ingested = app.topic("a", SCHEMA, event_time=hr.ingestion_time())
    stamped = app.topic("b", SCHEMA, event_time="_timestamp", lateness="1 minute")
    processed = app.topic("c", SCHEMA, event_time=hr.processing_time())
    corrected = app.topic(
        "d",
        "occurred TIMESTAMP, sent TIMESTAMP",
        event_time=hr.corrected_time("occurred", "sent"),
        lateness="1 minute",
    )
    assert app.problems() == ()
    assert (ingested.event_time, ingested.record_columns) == (hr.IngestionTime(), ("_timestamp",))
    assert stamped.record_columns == ("_timestamp",)
    assert processed.event_time is not None
    assert processed.event_time.column == "_event_time"
    assert corrected.event_time == hr.CorrectedTime("occurred", "sent", "_timestamp")
    assert corrected.record_columns == ()


def test_nodes_take_their_options() -> None:
    app = hr.App("fraud", state="memory")
    app.topic("payments", SCHEMA)

    @app.stream(
        key=["card", "id"],
        event_time="at",
        lateness="5 minutes",
        guarantee="at-least-once",
        latency="real-time",
        topic="prod.fast",
    )
    def fast(payments: Any) -> Any:
        """Quick ones."""
        return payments

    @app.view(key="card", order_by="at", guarantee="at-most-once")
    def spend(payments: Any) -> Any:
        return payments

    @app.step
    def clean(payments: Any) -> Any:
        return payments

    assert app.state is StateStore.MEMORY
    assert (fast.key, fast.event_time, fast.lateness) == (("card", "id"), "at", Duration.of("5 minutes"))
    assert (fast.guarantee, fast.latency, fast.topic_name) == (
        Guarantee.AT_LEAST_ONCE,
        Latency.REAL_TIME,
        "prod.fast",
    )
    assert (fast.__name__, fast.__doc__) == ("fast", "Quick ones.")
    assert list(inspect.signature(fast).parameters) == ["payments"]
    assert (spend.key, spend.order_by, spend.guarantee) == (("card",), ("at",), Guarantee.AT_MOST_ONCE)
    assert spend.table_name == "fraud.spend"
    assert clean.kind == "step"
    assert app.problems() == ()


def test_what_is_not_said() -> None:
    app = hr.App("fraud")
    app.topic("payments", SCHEMA)

    @app.stream
    def plain(payments: Any) -> Any:
        return payments

    assert (plain.key, plain.event_time, plain.lateness, plain.channels) == ((), None, None, ())
    assert (plain.guarantee, plain.latency) == (Guarantee.EXACTLY_ONCE, Latency.MICRO_BATCH)
    assert app.state is StateStore.ROCKSDB


def test_a_node_stays_callable() -> None:
    app = hr.App("fraud")
    payments = app.topic("payments", SCHEMA)

    @app.stream
    def large(payments: list[int], limit: int = 5) -> list[int]:
        return [amount for amount in payments if amount > limit]

    @app.stream
    def copied(rows: Any = payments, *, offset: int = 0) -> Any:
        return [row + offset for row in rows]

    assert large([1, 9]) == [9]
    assert large(payments=[1, 9], limit=0) == [1, 9]
    assert copied([1], offset=1) == [2]
    assert [parameter.name for parameter in large.parameters] == ["payments"]
    assert [parameter.upstream for parameter in copied.parameters] == [payments]
    with pytest.raises(TypeError, match="missing a required argument: 'payments'"):
        large()
    with pytest.raises(TypeError, match=r"copied\(\) needs a DataFrame for 'rows'.*the upstream payments"):
        copied()


def test_channels_are_attributes() -> None:
    app = hr.App("fraud", prefix="dev.")
    payments = app.topic("payments", SCHEMA, topic="prod.payments")

    @app.stream(channels=["eu", "us"])
    def split(payments: Any) -> Any:
        return {"eu": payments, "us": payments}

    @app.stream
    def whole(payments: Any) -> Any: ...

    assert split.outputs == (split.eu, split.us)
    assert whole.outputs == (whole,)
    assert split.eu == split.eu
    assert split.eu != split.us
    assert len({split.eu, split.eu, split.us}) == 2
    assert (str(split.eu), split.eu.topic_name) == ("split.eu", "dev.split.eu")
    assert payments.rejected.topic_name == "prod.payments.rejected"
    assert {"eu", "us", "late"} <= set(dir(split))
    assert not hasattr(split, "_private")


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda s: s.flow.rows(), r"stream 'flow' has no method 'rows'; read its rows with app.read\(flow\)"),
        (lambda s: s.payments.rows(1, x=2), r"topic 'payments' has no method 'rows'; .*app.read\(payments\)"),
        (
            lambda s: s.payments.rejected(),
            r"payments.rejected is a channel and cannot be called; .*app.read\(payments.rejected\)",
        ),
        (lambda s: s.now.row(), r"view 'now' has no method 'row'; did you mean 'rows'\?"),
        (lambda s: s.now.all(), r"view 'now' has no method 'all'; known here: get, reader, rows"),
        (lambda s: s.ticks.rows(), r"rate 'ticks' has no method 'rows'; make an @app.stream or an @app.view of it"),
    ],
)
def test_a_method_that_a_node_does_not_have_is_told(call: Any, complaint: str) -> None:
    app = headrace.App("fraud")
    payments, ticks = app.topic("payments", SCHEMA), app.rate("ticks")

    @app.stream
    def flow(payments: Any) -> Any: ...

    @app.view(key="id")
    def now(payments: Any) -> Any: ...

    with pytest.raises(headrace.InputError, match=complaint):
        call(SimpleNamespace(payments=payments, ticks=ticks, flow=flow, now=now))


def test_declaring_imports_no_spark_and_opens_nothing() -> None:
    """Run apart, since this process has Spark's classes loaded by other tests."""
    code = """
import sys
def watch(event, arguments):
    writes = event == "open" and "w" in str(arguments[1])
    if writes or event in ("socket.connect", "subprocess.Popen", "os.mkdir"):
        raise SystemExit(f"{event} {arguments}")
import headrace.topology as hr
sys.addaudithook(watch)
app = hr.App("fraud")
payments = app.topic("payments", "id STRING, at TIMESTAMP", key="id", event_time="at", lateness="1 minute")
app.files("more", "id STRING", path="nowhere/")
app.rate("ticks")
app.stream(key="id")(eval("lambda payments: payments", {}, {}))
app.problems()
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"pyspark", "pydantic", "pyarrow", "confluent_kafka", "psycopg"}, loaded
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
