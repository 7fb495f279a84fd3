"""Tables among the declarations: from a changelog, and made by a node."""

from typing import Any

import pytest

import headrace.topology as hr

CARDS = "card STRING, owner STRING, at TIMESTAMP"


def told(app: hr.App) -> list[str]:
    return [f"{problem.message}; {problem.next_step}" for problem in app.problems()]


def test_a_table_of_a_changelog_and_one_made_by_a_node() -> None:
    app = hr.App("fraud", prefix="eu.")
    cards = app.table("cards", CARDS, key="card")
    moved = app.table("moved", CARDS, key=["card", "at"], event_time="at", topic="moves")

    @app.table(key="card", event_time="at", lateness="1 minute", guarantee="at-least-once")
    def latest(moved: Any, cards: Any) -> Any:
        return moved

    @app.view(key="card")
    def shown(latest: Any) -> Any:
        return latest

    assert told(app) == []
    topology = app.topology()
    assert isinstance(cards, hr.TableTopic)
    assert isinstance(latest, hr.TableNode)
    assert (cards.kind, cards.topic_name, cards.key, cards.event_time) == ("table", "eu.cards", ("card",), None)
    assert (moved.topic_name, str(moved.event_time), moved.lateness) == ("moves", "at", hr.Duration(0))
    assert (latest.topic_name, latest.guarantee, latest.outputs) == ("eu.latest", hr.Guarantee.AT_LEAST_ONCE, (latest,))
    assert [node.is_table for node in app.nodes] == [True, True, True, False]
    assert not cards.rejected.is_table
    assert topology.feeds(latest) == (moved, cards)
    assert topology.reject_writer(cards) is latest
    assert topology.describe(latest)["kind"] == "table"
    assert topology.describe(latest)["sources"]["topic moves"]["kind"] == "table"


def test_tables_are_drawn() -> None:
    app = hr.App("fraud")
    app.table("cards", CARDS, key="card")

    @app.table(key="owner")
    def owners(cards: Any) -> Any:
        return cards

    assert hr.as_text(app.topology()).splitlines()[2:] == [
        "cards  table · key card",
        "└─▶ owners  table · key owner · exactly-once · writes cards.rejected",
    ]
    assert 'node_cards[["cards<br/>key card"]]' in hr.as_mermaid(app.topology())


TABLE_PROBLEMS: dict[str, tuple[dict[str, Any], str]] = {
    "no key": ({}, 'a table needs a key; name the columns that identify a row: key="id"'),
    "empty key": ({"key": []}, "a table needs a key"),
    "unknown key": ({"key": "crad"}, "key 'crad' is not a column; did you mean 'card'?"),
    "key of no name": ({"key": 5}, "key: 5 is neither a name nor a list of names"),
    "key of the record": ({"key": "_key"}, "key '_key' is not a column"),
    "own column": ({"key": "card", "schema": "card STRING, _Deleted BOOLEAN"}, "has a reserved name"),
    "event time": ({"key": "card", "event_time": "ta"}, "event_time 'ta' is not a column; known here: at"),
    "lateness alone": ({"key": "card", "lateness": "1 minute"}, "lateness needs an event time"),
    "schema": ({"key": "card", "schema": None}, "needs a schema"),
    "topic": ({"key": "card", "topic": "a b"}, "'a b' cannot be a topic's name"),
}


@pytest.mark.parametrize("options", TABLE_PROBLEMS)
def test_what_can_be_wrong_with_a_table(options: str) -> None:
    given, expected = TABLE_PROBLEMS[options]
    app = hr.App("fraud")
    app.table("cards", given.get("schema", CARDS), **{name: value for name, value in given.items() if name != "schema"})
    (only,) = told(app)
    assert only.startswith("table 'cards': ")
    assert expected in only
    assert app.problems()[0].file.endswith("test_tables.py")


def test_what_can_be_wrong_with_a_table_made_by_a_node() -> None:
    app = hr.App("fraud")
    app.topic("payments", CARDS, key="card")

    @app.table
    def keyless(payments: Any) -> Any:
        return payments

    wrong: Any = 5

    @app.table(key="card", event_time=wrong, guarantee="once")
    def untimely(payments: Any) -> Any:
        return payments

    @app.stream(latency="real-time", guarantee="at-least-once")
    def quick(keyless: Any) -> Any:
        return keyless

    assert [problem.partition(";")[0] for problem in told(app)] == [
        "table 'keyless': a table needs a key",
        "table 'untimely': event_time: 5 is not a column name",
        "table 'untimely': guarantee: 'once' is unknown",
        "stream 'quick': the table 'keyless' cannot feed it: real-time mode has no tables",
    ]


def test_a_heartbeat_needs_an_event_time_and_is_no_flutter() -> None:
    app = hr.App("fraud")
    timed = app.topic("timed", CARDS, event_time="at", lateness="1 minute", heartbeat="10 seconds")
    assert timed.heartbeat == hr.Duration.of("10 seconds")
    app.topic("timeless", CARDS, heartbeat="10 seconds")
    app.topic("flutter", CARDS, event_time="at", lateness="1 minute", heartbeat="10 milliseconds")
    app.topic("odd", CARDS, event_time="at", lateness="1 minute", heartbeat="soon")
    problems = told(app)
    assert problems[0] == "topic 'timeless': heartbeat needs an event time; add event_time=\"at\""
    assert problems[1].startswith("topic 'flutter': heartbeat: 10 milliseconds is too short; make it at least")
    assert problems[2].startswith("topic 'odd': heartbeat: ")
    assert "heartbeat 10 seconds" in hr.as_text(_with_reader(timed))


def _with_reader(topic: hr.Topic) -> hr.Topology:
    app = hr.App("fraud")
    app.topic("timed", topic.schema, event_time="at", lateness="1 minute", heartbeat="10 seconds")
    return app.topology()
