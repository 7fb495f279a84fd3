"""Every problem a declaration can have, told with file, line and what to do."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import headrace.topology as hr
from headrace.errors import TopologyError

SCHEMA = "id STRING, card STRING, amount DECIMAL(12,2), at TIMESTAMP, tags ARRAY<STRING>"


def told(app: hr.App) -> list[str]:
    """What is wrong, without file and line."""
    return [f"{problem.message}; {problem.next_step}" for problem in app.problems()]


def app_with_payments(**options: Any) -> hr.App:
    app = hr.App("fraud", **options)
    app.topic("payments", SCHEMA, key="card")
    return app


def test_an_app_without_problems_has_a_topology() -> None:
    app = app_with_payments()
    assert app.problems() == ()
    assert list(app.topology().nodes) == ["payments"]


def test_a_node_is_no_schema() -> None:
    app = app_with_payments()
    app.topic("more", app.nodes[0])
    (only,) = told(app)
    assert "is not a schema" in only


TOPIC_PROBLEMS: dict[str, tuple[dict[str, Any], str]] = {
    "bad schema": (
        {"schema": "id STIRNG"},
        "schema: 'STIRNG' of column 'id' is not a supported type",
    ),
    "no schema": ({"schema": None}, "a JSON topic needs a schema"),
    "reserved column": ({"schema": "_Offset INT"}, "the column '_Offset' has a reserved name"),
    "map keys": (
        {"schema": "m ARRAY<MAP<INT, DATE>>"},
        "has MAP<INT, DATE>, and keys in JSON are strings; write MAP<STRING, DATE>",
    ),
    "format": ({"format": "jsn"}, "format: 'jsn' is unknown; did you mean 'json'?"),
    "format and schema": (
        {"format": "string"},
        "a topic of format string has one STRING column; omit the schema",
    ),
    "key": ({"key": "crad"}, "key 'crad' is not a column; did you mean 'card'?"),
    "key case": ({"key": "Card"}, "key 'Card' is not a column; did you mean 'card'?"),
    "one key of two": ({"key": ["card", "nope"]}, "key 'nope' is not a column; known here: id, card"),
    "key twice": ({"key": ["card", "card"]}, "key: a name is repeated in ['card', 'card']"),
    "key of no text": ({"key": "tags"}, "key 'tags' is ARRAY<STRING>, which cannot be a key"),
    "key of no name": ({"key": 5}, "key: 5 is neither a name nor a list of names"),
    "record key not asked for": ({"key": "_key"}, "key '_key' is not a column"),
    "event time": (
        {"event_time": "att", "lateness": "1 minute"},
        "event_time 'att' is not a column; did you mean 'at'?",
    ),
    "event time's type": (
        {"event_time": "id", "lateness": "1 minute"},
        "event_time 'id' is STRING; make it TIMESTAMP",
    ),
    "event time's kind": (
        {"event_time": 5, "lateness": "1 minute"},
        "event_time: 5 is not an event time; name a column",
    ),
    "corrected time": (
        {"event_time": hr.corrected_time("at", "sent"), "lateness": "1 minute"},
        "event_time's sent time 'sent' is not a column",
    ),
    "no lateness": (
        {"event_time": "at"},
        'rows out of order would be lost; set how late a row may be: lateness="1 minute"',
    ),
    "no event time": ({"lateness": "1 minute"}, "lateness needs an event time"),
    "bad lateness": (
        {"event_time": "at", "lateness": "1 minuet"},
        "lateness: the duration '1 minuet' has an unknown unit 'minuet'",
    ),
    "bad ahead": ({"ahead": "soon"}, "ahead: 'soon' is not a duration"),
    "record columns": (
        {"record_columns": ["_ofset"]},
        "a record has no column '_ofset'; did you mean '_offset'?",
    ),
    "topic's name": ({"topic": "pay ments"}, "'pay ments' cannot be a topic's name"),
    "topic's length": ({"topic": "p" * 245}, "the topic's name is longer than 240 characters"),
    "name": ({"name": "prod.payments"}, "the name 'prod.payments' cannot be a parameter's name"),
    "keyword": ({"name": "class"}, "the name 'class' cannot be a parameter's name"),
    "name's length": ({"name": "p" * 64}, "the name has 64 characters; 63 are allowed"),
}


@pytest.mark.parametrize(("options", "problem"), TOPIC_PROBLEMS.values(), ids=TOPIC_PROBLEMS)
def test_a_topic_that_does_not_hold(options: dict[str, Any], problem: str) -> None:
    app = hr.App("fraud")
    app.topic(**{"name": "payments", "schema": SCHEMA} | options)
    (only,) = told(app)
    assert problem in only


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"name": "0fraud"}, "the name is not valid as a PostgreSQL schema"),
        ({"name": "f" * 64}, "the name is not valid as a PostgreSQL schema"),
        ({"state": "rockdb"}, "state: 'rockdb' is unknown; did you mean 'rocksdb'?"),
        ({"prefix": "a b"}, "'a b' cannot be a topic's name"),
    ],
)
def test_an_app_that_does_not_hold(options: dict[str, Any], problem: str) -> None:
    (only,) = told(hr.App(**{"name": "fraud"} | options))
    assert problem in only


def test_sources_for_trying_things_that_do_not_hold() -> None:
    app = hr.App("fraud")
    app.rate("ticks", rows_per_second=0)
    app.files("rows", SCHEMA, path="")
    app.files("more", SCHEMA, path="x/", event_time=hr.ingestion_time())
    assert told(app) == [
        "rate 'ticks': rows_per_second is 0; make it at least 1",
        "files 'rows': path is empty; name a folder: path=\"payments/\"",
        "files 'more': event_time: only the records of a topic have a timestamp; name a column",
    ]


STREAM_PROBLEMS: dict[str, tuple[dict[str, Any], str]] = {
    "guarantee": (
        {"guarantee": "exactly_once"},
        "guarantee: 'exactly_once' is unknown; did you mean 'exactly-once'?",
    ),
    "latency": ({"latency": "realtime"}, "latency: 'realtime' is unknown; did you mean 'real-time'?"),
    "real time": (
        {"latency": "real-time"},
        "does not support exactly-once: Spark's real-time sink is at-least-once",
    ),
    "real time at most once": (
        {"latency": "real-time", "guarantee": "at-most-once"},
        "does not support at-most-once",
    ),
    "lateness": ({"lateness": "late"}, "lateness: 'late' is not a duration"),
    "event time": (
        {"event_time": hr.ingestion_time()},
        "is not a column name; name a column that the function returns",
    ),
    "own channel": ({"channels": ["late"]}, "the channel 'late' has a name that a stream uses itself"),
    "hidden channel": ({"channels": ["key"]}, "the channel 'key' has a name that a stream uses itself"),
    "channel's name": ({"channels": ["e-u"]}, "the channel 'e-u' cannot be an attribute's name"),
    "channel's keyword": ({"channels": ["in"]}, "the channel 'in' cannot be an attribute's name"),
    "channel twice": ({"channels": ["eu", "eu"]}, "channels: a name is repeated in ['eu', 'eu']"),
    "channel's topic": (
        {"channels": ["eu"], "topic": "t" * 239},
        "the topic of channel 'eu' has a name longer than 240",
    ),
    "topic": ({"topic": "a/b"}, "'a/b' cannot be a topic's name"),
}


@pytest.mark.parametrize(("options", "problem"), STREAM_PROBLEMS.values(), ids=STREAM_PROBLEMS)
def test_a_stream_that_does_not_hold(options: dict[str, Any], problem: str) -> None:
    app = app_with_payments()

    @app.stream(**options)
    def bursts(payments: Any) -> Any:
        return payments

    (only,) = told(app)
    assert only.startswith("stream 'bursts': ")
    assert problem in only


def test_a_view_needs_a_key() -> None:
    app = app_with_payments()

    @app.view
    def bare(payments: Any) -> Any: ...

    @app.view(order_by="at")
    def keyless(payments: Any) -> Any: ...

    assert [problem.partition(";")[0] for problem in told(app)] == [
        "view 'bare': a view needs a key",
        "view 'keyless': a view needs a key",
    ]


def function_problems() -> dict[str, tuple[Callable[..., Any], str]]:
    async def later(payments: Any) -> Any: ...

    def rows(payments: Any) -> Any:
        yield payments

    def nothing() -> Any: ...

    def several(*payments: Any) -> Any: ...

    def named(payments: Any, **others: Any) -> Any: ...

    def positional(payments: Any, /) -> Any: ...

    def typo(paymets: Any) -> Any: ...

    def stranger(clicks: Any) -> Any: ...

    return {
        "async": (later, "a node is a plain function; return a DataFrame: no async, no yield"),
        "generator": (rows, "a node is a plain function"),
        "reads nothing": (nothing, "it reads nothing; name its upstream as a parameter"),
        "star": (several, "the parameter '*payments: Any' cannot name an upstream"),
        "double star": (named, "the parameter '**others: Any' cannot name an upstream"),
        "positional": (positional, "the parameter 'payments: Any' cannot name an upstream"),
        "typo": (typo, "unknown upstream 'paymets'; did you mean 'payments'?"),
        "stranger": (stranger, "unknown upstream 'clicks'; known here: payments"),
        "lambda": (lambda payments: payments, "the name '<lambda>' cannot be a parameter's name"),
    }


FUNCTION_PROBLEMS = function_problems()


@pytest.mark.parametrize(("function", "problem"), FUNCTION_PROBLEMS.values(), ids=FUNCTION_PROBLEMS)
def test_a_function_that_is_no_node(function: Callable[..., Any], problem: str) -> None:
    app = app_with_payments()
    app.step(function)
    assert any(problem in each for each in told(app)), told(app)


def test_names_are_taken_once() -> None:
    app = app_with_payments()
    app.topic("clicks", SCHEMA)

    @app.stream
    def payments(clicks: Any) -> Any: ...

    @app.stream
    def Clicks(payments: Any) -> Any: ...

    first, second = told(app)
    assert first.startswith("stream 'payments': the name is taken by the topic at ")
    assert second.startswith(
        "stream 'Clicks': the name differs only in case from 'clicks', which is taken by the topic at "
    )


def test_topics_are_owned_once() -> None:
    app = app_with_payments()
    app.topic("twice", SCHEMA, topic="payments")
    app.topic("refused", SCHEMA, topic="payments.rejected")

    @app.stream(topic="payments")
    def loop(payments: Any) -> Any: ...

    assert [problem.partition(" at ")[0] for problem in told(app)] == [
        "topic 'twice': the topic 'payments' already belongs to the topic 'payments'",
        "topic 'refused': the topic 'payments.rejected' already belongs to the topic 'payments'",
        "stream 'loop': the topic 'payments' already belongs to the topic 'payments'",
    ]


def test_a_channel_that_is_not_there_is_told_where_it_is_named() -> None:
    app = app_with_payments()
    ticks = app.rate("ticks")

    @app.stream(channels=["eu", "us"])
    def split(payments: Any) -> Any: ...

    @app.stream
    def lost(
        ticks: Any,
        rows: Any = split.euu,
    ) -> Any: ...

    line = inspect.currentframe().f_lineno - 3  # type: ignore[union-attr]

    @app.stream
    def none(rows: Any = ticks.late) -> Any: ...

    assert told(app) == [
        "stream 'lost': stream 'split' has no channel 'euu'; did you mean 'eu'?",
        "stream 'none': rate 'ticks' has no channel 'late'; read the node itself",
    ]
    assert app.problems()[0].line == line


def test_rows_in_channels_are_read_from_a_channel() -> None:
    app = app_with_payments()

    @app.stream(channels=["eu", "us"])
    def split(payments: Any) -> Any: ...

    @app.stream
    def both(split: Any) -> Any: ...

    assert told(app) == [
        "stream 'both': the rows of 'split' are in its channels; name one by a default: split=split.eu"
    ]


def test_a_view_feeds_nothing() -> None:
    app = app_with_payments()

    @app.view(key="card")
    def spend(payments: Any) -> Any: ...

    @app.stream
    def after(spend: Any) -> Any: ...

    (only,) = told(app)
    assert only.startswith("stream 'after': the view 'spend' is a table, not a stream; read what 'spend' reads")


def test_nodes_of_another_app_are_not_read() -> None:
    other = hr.App("other").topic("clicks", SCHEMA)
    app = app_with_payments()

    @app.stream
    def mixed(payments: Any, clicks: Any = other) -> Any: ...

    assert told(app) == ["stream 'mixed': clicks belongs to the app 'other'; declare its topic here"]


def test_cycles_are_told_by_their_way() -> None:
    app = app_with_payments()

    @app.stream
    def a(c: Any, payments: Any) -> Any: ...

    @app.step
    def b(a: Any) -> Any: ...

    @app.stream
    def c(b: Any) -> Any: ...

    @app.stream
    def own(own: Any) -> Any: ...

    assert told(app) == [
        "stream 'a': it is its own upstream: a → b → c → a; break the cycle",
        "stream 'own': it is its own upstream: own → own; break the cycle",
    ]


def test_real_time_reads_topics_alone() -> None:
    app = app_with_payments()
    app.rate("ticks")

    @app.step
    def even(ticks: Any) -> Any: ...

    @app.stream(latency="real-time", guarantee="at-least-once")
    def fast(even: Any, payments: Any) -> Any: ...

    assert told(app) == [
        "stream 'fast': rate 'ticks' cannot feed it: real-time mode reads only topics; leave latency out"
    ]


def test_rejects_that_nobody_writes() -> None:
    app = app_with_payments()

    @app.stream
    def bad(rows: Any = app.nodes[0].rejected) -> Any: ...

    (only,) = told(app)
    assert only.startswith("stream 'bad': nothing writes payments.rejected; no node reads 'payments'")


def test_all_problems_at_once_in_the_order_of_the_file() -> None:
    app = hr.App("fraud", state="disk")
    app.topic("payments", "id STIRNG", key="crad", lateness="soon")
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]

    @app.stream(guarantee="twice")
    def bursts(paymets: Any) -> Any: ...

    with pytest.raises(TopologyError) as caught:
        app.topology()
    problems = caught.value.problems
    assert [problem.line for problem in problems] == [line - 1, line, line, line, line + 3, line + 3]
    assert all(problem.file.endswith("test_checks.py") for problem in problems)
    assert str(caught.value).splitlines()[0] == "6 problems:"
    assert f"test_checks.py:{line}: topic 'payments': schema: 'STIRNG'" in str(caught.value)
