import inspect
import json
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import headrace.topology as hr
from headrace.topology import Duration

SCHEMA = "id STRING, card STRING, at TIMESTAMP"


def names(nodes: Any) -> list[str]:
    return [str(node) for node in nodes]


def test_feeds_are_seen_through_steps_and_once() -> None:
    app = hr.App("fraud")
    payments = app.topic("payments", SCHEMA)
    app.topic("clicks", SCHEMA)

    @app.step
    def clean(payments: Any) -> Any: ...

    @app.step
    def joined(clean: Any, clicks: Any) -> Any: ...

    @app.stream
    def bursts(joined: Any, payments: Any, limit: int = 5) -> Any: ...

    @app.view(key="id")
    def seen(clicks: Any, rows: Any = bursts.late) -> Any: ...

    topology = app.topology()
    assert list(topology.inputs(bursts)) == ["joined", "payments"]
    assert names(topology.feeds(bursts)) == ["payments", "clicks"]
    assert names(topology.feeds(seen)) == ["clicks", "bursts.late"]
    assert topology.readers(payments) == (bursts,)
    assert topology.readers(bursts.late) == (seen,)
    assert topology.readers(bursts) == ()
    assert topology.queries == (bursts, seen)
    assert topology.nodes["joined"] is joined


def test_nodes_are_ordered_whatever_the_order_of_the_file() -> None:
    app = hr.App("fraud")

    @app.view(key="id")
    def last(middle: Any) -> Any: ...

    @app.stream
    def middle(first: Any) -> Any: ...

    @app.stream
    def first(payments: Any) -> Any: ...

    app.topic("payments", SCHEMA)
    topology = app.topology()
    assert names(topology.order) == ["payments", "first", "middle", "last"]
    assert topology.queries == (first, middle, last)


def test_the_rejects_of_a_topic_have_one_writer() -> None:
    app = hr.App("fraud")
    payments = app.topic("payments", SCHEMA)
    ticks = app.rate("ticks")

    @app.stream(guarantee="at-most-once")
    def lossy(payments: Any) -> Any: ...

    @app.stream(guarantee="at-least-once", latency="real-time")
    def fast(payments: Any) -> Any: ...

    @app.view(key="id")
    def table(payments: Any, ticks: Any) -> Any: ...

    assert app.topology().reject_writer(payments) is table

    @app.stream
    def exact(payments: Any) -> Any: ...

    @app.stream
    def too(payments: Any, fast: Any) -> Any: ...

    topology = app.topology()
    assert topology.reject_writer(payments) is exact
    assert topology.reject_writer(ticks) is None
    assert topology.reject_writer(too) is None
    assert topology.rejects_written_by(exact) == (payments,)
    assert topology.rejects_written_by(too) == (fast,)
    assert topology.rejects_written_by(table) == ()


def test_who_reads_rejects_comes_after_who_writes_them() -> None:
    app = hr.App("fraud")
    payments = app.topic("payments", SCHEMA)

    @app.stream
    def bad(rows: Any = payments.rejected) -> Any: ...

    @app.stream
    def good(payments: Any) -> Any: ...

    topology = app.topology()
    assert names(topology.order) == ["payments", "good", "bad"]
    assert topology.reject_writer(payments.rejected) is None


def test_repaired_rows_may_come_back() -> None:
    app = hr.App("fraud")
    payments = app.topic("payments", SCHEMA)

    @app.stream
    def repaired(rows: Any = payments.rejected) -> Any: ...

    @app.stream
    def whole(payments: Any, repaired: Any) -> Any: ...

    topology = app.topology()
    assert topology.reject_writer(payments) is whole
    assert names(topology.order) == ["payments", "repaired", "whole"]


def test_lateness_is_that_of_the_upstreams() -> None:
    app = hr.App("fraud")
    app.topic("quick", SCHEMA, event_time="at", lateness="1 minute")
    app.topic("slow", SCHEMA, event_time="at", lateness="1 hour")
    app.topic("timeless", SCHEMA)

    @app.step
    def both(quick: Any, slow: Any) -> Any: ...

    @app.stream
    def inherits(both: Any, timeless: Any) -> Any: ...

    @app.stream(lateness="5 minutes")
    def says(both: Any) -> Any: ...

    @app.view(key="id")
    def table(says: Any, quick: Any) -> Any: ...

    topology = app.topology()
    assert topology.lateness(inherits) == Duration.of("1 hour")
    assert topology.lateness(says) == Duration.of("5 minutes")
    assert topology.lateness(table) == Duration.of("5 minutes")
    assert topology.lateness(topology.nodes["timeless"]) == Duration(0)


def fraud(lateness: str = "1 minute", key: str = "card", body: int = 0, rename: bool = False) -> hr.App:
    app = hr.App("fraud", prefix="dev.")
    topic = app.topic(
        "events" if rename else "payments",
        SCHEMA,
        key=key,
        event_time="at",
        lateness=lateness,
        topic="prod.payments",
    )

    @app.stream(key="card", channels=["eu", "us"])
    def split(rows: Any = topic) -> Any:
        return body

    @app.view(key="id", order_by="at")
    def table(rows: Any = split.eu) -> Any: ...

    return app


def described(app: hr.App) -> dict[str, Any]:
    topology = app.topology()
    return {query.name: topology.describe(query) for query in topology.queries}


def test_a_query_is_described_by_plain_values() -> None:
    expected = {
        "split": {
            "kind": "stream",
            "key": ["card"],
            "lateness": "1 minute",
            "sources": {
                "topic prod.payments": {
                    "kind": "topic",
                    "lateness": "1 minute",
                    "key": ["card"],
                    "event_time": "at",
                    "ahead": "1 hour",
                    "format": "json",
                }
            },
            "rejects": ["topic prod.payments"],
            "event_time": None,
            "channels": ["eu", "us"],
        },
        "table": {
            "kind": "view",
            "key": ["id"],
            "lateness": "1 minute",
            "sources": {
                "topic dev.split.eu": {
                    "kind": "stream",
                    "lateness": "1 minute",
                    "key": ["card"],
                    "event_time": None,
                }
            },
            "rejects": ["topic dev.split.eu"],
            "order_by": ["at"],
        },
    }
    assert described(fraud()) == expected
    assert json.loads(json.dumps(described(fraud()))) == expected


def test_a_description_follows_what_matters_to_a_checkpoint_alone() -> None:
    assert described(fraud()) == described(fraud(body=1)) == described(fraud(rename=True))
    assert described(fraud()) == described(fraud(lateness="60 seconds"))
    assert described(fraud()) != described(fraud(lateness="2 minutes"))
    assert described(fraud()) != described(fraud(key="id"))


def function_named(name: str, parameters: list[str]) -> Callable[..., Any]:
    def function(*_: Any) -> Any: ...

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    function.__name__ = name
    signature = inspect.Signature([inspect.Parameter(parameter, kind) for parameter in parameters])
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


@given(st.permutations(range(6)), st.data())
def test_any_graph_of_streams_and_steps_holds_together(declared: list[int], data: st.DataObject) -> None:
    """Node n reads some nodes of smaller number, and is declared at any place in the file."""
    app = hr.App("any")
    app.topic("node0", SCHEMA)
    reads = {
        number: data.draw(st.lists(st.sampled_from(range(number)), min_size=1, unique=True)) for number in range(1, 7)
    }
    for number in (position + 1 for position in declared):
        declare = data.draw(st.sampled_from([app.stream, app.step]))
        declare(function_named(f"node{number}", [f"node{upstream}" for upstream in reads[number]]))
    topology = app.topology()
    position = {node: index for index, node in enumerate(topology.order)}
    assert set(position) == set(app.nodes)
    for node in app.nodes:
        assert all(position[feed.node] < position[node] for feed in topology.inputs(node).values())
    for query in topology.queries:
        assert not any(isinstance(feed, hr.Step) for feed in topology.feeds(query))
        assert all(query in topology.readers(feed) for feed in topology.feeds(query))
        assert all(topology.reject_writer(feed) is query for feed in topology.rejects_written_by(query))
    read = {feed for query in topology.queries for feed in topology.feeds(query)}
    assert all(topology.reject_writer(feed) is not None for feed in read)
