"""Tables: changelogs read and written, what stays a table, and what a table refuses to be."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

import headrace as hr
from headrace.config.run import RunConfig
from headrace.testing import Harness

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.engine.read.tables import Table

pytestmark = pytest.mark.timeout(300)

CARDS = "card STRING, owner STRING, home STRING"
MOVES = "card STRING, place STRING, at TIMESTAMP"
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def at(minute: int, second: int = 0) -> datetime:
    return NOON.replace(minute=minute, second=second)


def test_a_changelog_is_a_table_and_a_table_is_a_changelog(headrace_harness: Callable[..., Harness]) -> None:
    app = hr.App("duality")
    cards = app.table("cards", CARDS, key="card")
    moves = app.topic("moves", MOVES, key="card", event_time="at", lateness="1 minute")

    @app.stream(key="card")
    def diary(cards: Table) -> DataFrame:
        return cards.changes

    @app.table(key="card")
    def germans(cards: Table) -> Table:
        return cards.where("home = 'DE'").select("card", "owner")

    @app.view(key="card")
    def owners(germans: Table) -> Table:
        return germans.select("*", "upper(owner) AS shouted")

    @app.table(key="card")
    def places(moves: DataFrame) -> DataFrame:
        return moves.selectExpr("*", "place = 'nowhere' AS _deleted")

    harness = headrace_harness(app)
    harness.send(cards, [{"card": "a", "owner": "Ann", "home": "DE"}, {"card": "b", "owner": "Bob", "home": "FR"}])
    harness.settle()
    assert harness.rows(cards) == [
        {"card": "a", "owner": "Ann", "home": "DE"},
        {"card": "b", "owner": "Bob", "home": "FR"},
    ]
    assert harness.rows(germans) == [{"card": "a", "owner": "Ann"}]
    assert harness.rows(owners) == [{"card": "a", "owner": "Ann", "shouted": "ANN"}]

    harness.send(cards, {"card": "a", "owner": "Ann", "home": "ES"}, {"card": "b", "owner": "Bo", "home": "DE"})
    harness.send(cards, {"card": "c", "owner": "Cem", "home": "DE"})
    harness.settle()
    assert [row["owner"] for row in harness.rows(owners)] == ["Bo", "Cem"], "Ann left the condition"

    harness.send(cards, None, key="c")
    harness.send(cards, b"{broken", key="d")
    harness.restart()
    harness.settle()
    assert [row["owner"] for row in harness.rows(owners)] == ["Bo"]
    assert [(row["card"], row["_deleted"]) for row in harness.rows(diary)] == [
        ("a", False),
        ("b", False),
        ("a", False),
        ("b", False),
        ("c", False),
        ("c", True),
    ]
    assert [row["reason"] for row in harness.rows(cards.rejected)] == ["the value is not one JSON object"]
    gone = harness.records(germans)[-1]
    assert (gone.key, gone.value, gone.row) == (b"c", None, None)

    harness.send(moves, [{"card": "a", "place": place, "at": at(minute)} for minute, place in enumerate("xyz")])
    harness.send(moves, {"card": "b", "place": "w", "at": at(0)}, {"card": "c", "place": "v", "at": at(5)})
    harness.send(moves, {"card": "b", "place": "nowhere", "at": at(6)}, {"card": "c", "place": "u", "at": at(1)})
    harness.settle()
    assert harness.rows(places) == [
        {"card": "a", "place": "z", "at": at(2)},
        {"card": "c", "place": "u", "at": at(1)},
    ], "the row that came last wins, whatever its time"
    headers = [dict(record.headers) for record in harness.records(places) if record.value is None]
    assert headers == [{"headrace-time": b"2026-01-31T12:06:00.000000Z"}]


def test_the_time_of_a_row_is_its_event_time_or_its_record_s(headrace_harness: Callable[..., Harness]) -> None:
    """Whatever table it went through on its way."""
    app = hr.App("validity")
    timed = app.table(
        "timed", "day DATE, price DECIMAL(9,2), k INT, since TIMESTAMP", key=["day", "k"], event_time="since"
    )
    timeless = app.table("timeless", "k TIMESTAMP, v STRING", key="k")

    @app.table(key=["k", "day"])
    def derived(timed: Table) -> Table:
        return timed.where("price > 1")

    @app.table(key="k")
    def renamed(timeless: Table) -> Table:
        return timeless.select("v", "k")

    @app.stream(event_time="since")
    def changes(derived: Table) -> DataFrame:
        return derived.changes

    @app.stream
    def times(renamed: Table) -> DataFrame:
        from headrace.engine.read.tables import versions_of

        return versions_of(renamed)

    harness = headrace_harness(app)
    row = {"day": date(2026, 1, 31), "price": Decimal("2.50"), "k": 7, "since": at(3)}
    harness.send(timed, row)
    harness.send(timed, row | {"price": Decimal(1)})
    harness.send(timed, None, key=(date(2026, 1, 31), 7), timestamp=at(4))
    harness.send(timed, None, key={"k": 8, "day": date(2026, 2, 1)}, timestamp=at(5))
    for bad in ("x", '["2026-01-31"]', '["2026-01-31",null]', '["2026-01-31",7,8]', '["2026-13-31",7]'):
        harness._producer.send_raw(timed, None, key=bad)
    harness._producer.flush()
    harness.send(timeless, {"k": at(1), "v": "x"}, timestamp=at(7))
    harness.send(timeless, None, key=at(1), timestamp=at(8))
    harness.settle()
    assert harness.rows(derived) == []
    told = [(row["day"], row["k"], row["price"], row["since"], row["_deleted"]) for row in harness.rows(changes)]
    assert told == [
        (date(2026, 1, 31), 7, Decimal("2.50"), at(3), False),
        (date(2026, 1, 31), 7, None, at(3), True),
        (date(2026, 1, 31), 7, None, at(4), True),
        (date(2026, 2, 1), 8, None, at(5), True),
    ]
    reasons = {row["reason"] for row in harness.rows(timed.rejected)}
    assert reasons == {"it is a delete, and its key does not match day DATE, k INT"}
    assert len(harness.rows(timed.rejected)) == 5
    versions = harness.rows(times)
    assert [(row["k"], row["_deleted"], row["_time"]) for row in versions] == [
        (at(1), False, at(7)),
        (at(1), True, at(8)),
    ]
    assert versions[0]["_order"] < versions[1]["_order"]  # offsets, between which a commit may stand


def problems_of(spark: SparkSession, config: RunConfig, function: Callable[..., Any], **options: Any) -> str:
    """The one problem of a node that reads a table of cards and a stream of moves."""
    from headrace.engine.plan.planner import plan_topology

    app = hr.App("wrong")
    app.table("cards", CARDS, key="card")
    app.topic("moves", MOVES, key="card", event_time="at", lateness="1 minute")
    kind = options.pop("kind", "stream")
    getattr(app, kind)(**options)(function)
    with pytest.raises(hr.PlanError) as caught:
        plan_topology(app.topology(), spark, config)
    (problem,) = caught.value.problems
    assert problem.file.endswith("test_tables.py")
    return f"{problem.message}; {problem.next_step}"


def test_a_table_is_no_dataframe(spark: SparkSession, config: RunConfig) -> None:
    def joined(moves: Any, cards: Any) -> Any:
        return moves.join(cards, "card")

    def joining(moves: Any, cards: Any) -> Any:
        return cards.join(moves, "card")

    def counted(cards: Any) -> Any:
        return cards.groupBy("home").count()

    def column(cards: Any) -> Any:
        return cards.where(cards["home"] == "DE")

    def keyless(cards: Any) -> Any:
        return cards.select("owner").changes

    def returned(cards: Any) -> Any:
        return cards

    def other_key(cards: Any) -> Any:
        return cards

    def flag(moves: Any) -> Any:
        return moves.selectExpr("*", "1 AS _deleted")

    def tell(function: Callable[..., Any], **options: Any) -> str:
        return problems_of(spark, config, function, **options)

    enrich = "write hr.enrich(stream, cards, on=...) for a stream, hr.join(cards, other, on=...) for another table"
    assert tell(joined) == f"stream 'joined': 'cards' is a table, not a DataFrame; {enrich}"
    assert tell(joining) == f"stream 'joining': 'cards' is a table, and has no .join; {enrich}"
    assert "'cards' is a table, and has no .groupBy; pass it to hr.enrich or hr.join, or write cards.changes" in tell(
        counted
    )
    assert "'cards' is a table, and cannot be indexed; write the names of columns as text" in tell(column)
    assert "this select drops the key of the table 'cards': card" in tell(keyless)
    assert "it returns Table('cards', key=card), but a stream is made of events" in tell(returned)
    assert "its key is owner, but the key of the table that it returns is card; write key=['card']" in tell(
        other_key, kind="table", key="owner"
    )
    assert "'_deleted' is int; make it BOOLEAN: true deletes" in tell(flag, kind="table", key="card")
