"""Joins of streams, merging them, and looking events up in tables, on the harness; and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import headrace as hr
from headrace.engine.config import RunConfig
from headrace.testing import Harness

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.engine.tables import Table

pytestmark = pytest.mark.timeout(300)

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
SEARCHES = "id STRING, query STRING, searched TIMESTAMP"
CLICKS = "search STRING, link INT, clicked TIMESTAMP"
MakeHarness = Callable[..., Harness]


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


def search_app(name: str) -> tuple[hr.App, Any, Any]:
    app = hr.App(name)
    searches = app.topic("searches", SEARCHES, key="id", event_time="searched", lateness="1 minute")
    clicks = app.topic("clicks", CLICKS, key="search", event_time="clicked", lateness="1 minute")
    return app, searches, clicks


def test_searches_and_clicks_in_every_way(headrace_harness: MakeHarness) -> None:
    app, searches, clicks = search_app("search")

    def joining(how: str) -> Callable[..., Any]:
        def joined(searches: DataFrame, clicks: DataFrame) -> DataFrame:
            some = searches.selectExpr("NULLIF(id, 'nobody') AS id", "query", "searched")
            others = clicks.selectExpr("NULLIF(search, 'nobody') AS search", "link", "clicked")
            return hr.join(some, others, on={"id": "search"}, within="10 minutes", how=how)

        joined.__name__ = how
        return joined

    nodes = {how: app.stream(key="id")(joining(how)) for how in ("inner", "left", "right", "full")}

    @app.stream(key="id")
    def hourly(left: DataFrame) -> Any:
        return hr.windowed(left, hr.tumbling("1 hour")).agg(n=hr.count("link"))

    harness = headrace_harness(app)
    harness.send(
        searches,
        [{"id": id, "query": "q", "searched": at(minute)} for id, minute in zip("abc", (0, 1, 2), strict=True)],
    )
    harness.send(clicks, {"search": "a", "link": 1, "clicked": at(3)}, {"search": "a", "link": 2, "clicked": at(10)})
    harness.send(clicks, {"search": "b", "link": 3, "clicked": at(11.5)}, {"search": "z", "link": 4, "clicked": at(5)})
    harness.send(searches, {"id": "nobody", "query": "q", "searched": at(1)})
    harness.send(clicks, {"search": "nobody", "link": 5, "clicked": at(2)})
    harness.settle()
    pairs = [("a", 1, at(0), at(3), at(3)), ("a", 2, at(0), at(10), at(10))]
    assert rows_of(harness, "inner") == pairs
    harness.advance(at(120))
    unclicked = [(id, None, at(minute), None, at(minute + 10)) for id, minute in (("b", 1), ("c", 2), (None, 1))]
    unsearched = [("b", 3, None, at(11.5), at(21.5)), ("z", 4, None, at(5), at(15)), (None, 5, None, at(2), at(12))]
    assert rows_of(harness, "inner") == pairs
    assert rows_of(harness, "left") == sorted([*pairs, *unclicked], key=str)
    assert rows_of(harness, "right") == sorted([*pairs, *unsearched], key=str)
    assert rows_of(harness, "full") == sorted([*pairs, *unclicked, *unsearched], key=str)
    assert {(row["id"], row["n"]) for row in harness.rows(hourly)} == {("a", 2), ("b", 0), ("c", 0)}
    assert set(nodes) == {"inner", "left", "right", "full"}


def test_a_side_that_lags_makes_no_pair_late(headrace_harness: MakeHarness) -> None:
    """All clicks are there before the first search: the pairs come out of order by as much as they wait."""
    app, searches, clicks = search_app("lagging")

    @app.stream(key="id")
    def pairs(searches: DataFrame, clicks: DataFrame) -> DataFrame:
        return hr.join(searches, clicks, on={"id": "search"}, within="10 minutes")

    @app.stream
    def minutes(pairs: DataFrame) -> Any:
        return hr.windowed(pairs, hr.tumbling("1 minute"), by=[]).agg(n=hr.count())

    harness = headrace_harness(app)
    waits = [9.5, 0.0, 9.5, 0.0]  # every other is clicked long after it was searched
    harness.send(
        clicks,
        sorted(
            ({"search": str(n), "link": n, "clicked": at(n + wait)} for n, wait in enumerate(waits)),
            key=lambda row: row["clicked"],
        ),
    )
    harness.settle()
    for n in range(len(waits)):
        harness.send(searches, {"id": str(n), "query": "q", "searched": at(n)})
        harness.settle()
    harness.advance(at(60))
    assert len(harness.rows(pairs)) == len(waits)
    assert sum(row["n"] for row in harness.rows(minutes)) == len(waits)


def rows_of(harness: Harness, node: str) -> list[tuple[Any, ...]]:
    names = ("id", "link", "searched", "clicked", "joined_at")
    return sorted((tuple(row[name] for name in names) for row in harness.rows(node)), key=str)


PAYMENTS = "id STRING, card STRING, at TIMESTAMP"


def test_events_see_the_row_that_was_valid_at_their_time(headrace_harness: MakeHarness) -> None:
    app = hr.App("lookup")
    payments = app.topic("payments", PAYMENTS, key="id", event_time="at", lateness="1 minute")
    plain = app.topic("plain", "id STRING, card STRING", key="id")
    cards = app.table("cards", "number STRING, home STRING", key="number")

    @app.stream(key="id")
    def then(payments: DataFrame, cards: Table) -> DataFrame:
        return hr.enrich(payments, cards, on={"card": "number"})

    @app.stream(key="id")
    def anyhow(payments: DataFrame, cards: Table) -> DataFrame:
        return hr.enrich(payments, cards.where("home <> 'FR'"), on={"card": "number"}, how="left", wait="5 minutes")

    @app.stream(key="id")
    def now(plain: DataFrame, cards: Table) -> DataFrame:
        return hr.enrich(plain, cards, on={"card": "number"}, as_of="now", how="left")

    @app.stream(key="home")
    def per_home(then: DataFrame) -> Any:
        return hr.windowed(then, hr.tumbling("1 hour"), by="home").agg(n=hr.count())

    harness = headrace_harness(app)
    harness.send(cards, {"number": "a", "home": "DE"}, timestamp=at(0))
    harness.send(cards, {"number": "a", "home": "FR"}, timestamp=at(10))
    harness.send(cards, {"number": "b", "home": "ES"}, timestamp=at(0))
    harness.send(cards, None, key="b", timestamp=at(5))
    sent = [("1", "a", -1), ("2", "a", 0), ("3", "a", 9), ("4", "a", 10), ("5", "b", 4), ("6", "b", 6), ("7", "c", 6)]
    harness.send(payments, [{"id": id, "card": card, "at": at(minute)} for id, card, minute in sent])
    harness.send(plain, [{"id": card, "card": card} for card in "abc"])
    harness.settle()
    found = {row["id"]: row["home"] for row in harness.rows(then)}
    assert found == {"1": "DE", "2": "DE", "3": "DE", "4": "FR", "5": "ES"}, "the first row of a counts before it too"
    assert {row["id"]: row["home"] for row in harness.rows(now)} == {"a": "FR", "b": None, "c": None}
    assert harness.rows(anyhow) == [] or max(row["at"] for row in harness.rows(anyhow)) < at(10 - 1 - 5)

    harness.restart()
    harness.send(cards, {"number": "a", "home": "PT"}, timestamp=at(11))
    harness.send(cards, {"number": "b", "home": "IT"}, timestamp=at(6))
    harness.settle()
    harness.send(payments, {"id": "8", "card": "a", "at": at(11)}, {"id": "9", "card": "a", "at": at(10.5)})
    harness.settle()
    found = {row["id"]: row["home"] for row in harness.rows(then)}
    assert found == {"1": "DE", "2": "DE", "3": "DE", "4": "FR", "5": "ES", "8": "PT", "9": "FR"}
    harness.advance(at(120))
    found = {row["id"]: row["home"] for row in harness.rows(anyhow)}
    assert found == {
        "1": "DE", "2": "DE", "3": "DE", "4": None, "5": "ES", "6": "IT", "7": None, "8": "PT", "9": None,
    }, "it waited for the row that was late"  # fmt: skip
    counts = sorted((row["home"], row["n"]) for row in harness.rows(per_home))
    assert counts == [("DE", 1), ("DE", 2), ("ES", 1), ("FR", 2), ("PT", 1)], "of two hours"
    assert harness.progress(then).late == 0


def test_events_without_a_row_are_counted_and_the_reason_is_said(headrace_harness: MakeHarness) -> None:
    """The rows of the tables were written just now; the payments tell of the past."""
    app = hr.App("misses")
    payments = app.topic("payments", PAYMENTS, key="id", event_time="at", lateness="1 minute")
    cards = app.table("cards", "card STRING, home STRING", key="card")
    prices = app.table("prices", "card STRING, price INT, since TIMESTAMP", key="card", event_time="since")

    @app.stream(key="id")
    def known(payments: DataFrame, cards: Table) -> DataFrame:
        return hr.enrich(payments, cards, on="card")

    @app.stream(key="id")
    def priced(payments: DataFrame, prices: Table) -> DataFrame:
        return hr.enrich(payments, prices, on="card")

    @app.stream(key="id")
    def now(payments: DataFrame, prices: Table) -> DataFrame:
        return hr.enrich(payments, prices, on="card", as_of="now")

    harness = headrace_harness(app)
    harness.send(cards, [{"card": card, "home": "DE"} for card in "ab"])
    harness.send(prices, [{"card": card, "price": 1, "since": at(3)} for card in "ab"])
    harness.send(payments, [{"id": str(n), "card": "abc"[n % 3], "at": at(n)} for n in range(6)])
    harness.settle()
    assert [row["id"] for row in harness.rows(known)] == ["0", "1", "3", "4"]
    assert harness.progress(known).unmatched == 2
    assert harness.progress(known).hints == ()
    assert sorted(row["id"] for row in harness.rows(priced)) == ["3", "4"]
    assert harness.progress(priced).unmatched == 4
    (hint,) = harness.progress(priced).hints
    assert hint == "2 events are older than the first row of their key in the table prices: use as_of='now'"
    assert sorted(row["id"] for row in harness.rows(now)) == ["0", "1", "3", "4"], "which is what the hint says"
    assert harness.progress(now).hints == ()


def test_events_come_out_once(headrace_harness: MakeHarness) -> None:
    app = hr.App("terminals")
    payments = app.topic("payments", PAYMENTS, key="id", event_time="at", lateness="1 minute")

    @app.stream(key="id")
    def once(payments: DataFrame) -> DataFrame:
        return hr.dedup(payments, on=["id", "card"], within="1 hour")

    @app.stream(key="card")
    def hourly(once: DataFrame) -> Any:
        return hr.windowed(once, hr.tumbling("1 hour"), by="card").agg(n=hr.count())

    harness = headrace_harness(app)
    sent = [("1", "x", 0), ("1", "y", 1), ("2", "x", 2), ("1", "x", 3)]
    harness.send(payments, [{"id": id, "card": card, "at": at(minute)} for id, card, minute in sent])
    harness.settle()
    first = [("1", "x"), ("1", "y"), ("2", "x")]
    assert sorted((row["id"], row["card"]) for row in harness.rows(once)) == first
    harness.restart()
    harness.send(payments, {"id": "1", "card": "x", "at": at(59)}, {"id": "2", "card": "x", "at": at(63)})
    harness.settle()
    assert sorted((row["id"], row["card"]) for row in harness.rows(once)) == [*first, ("2", "x")]
    harness.advance(at(120))
    harness.send(payments, {"id": "2", "card": "x", "at": at(125)})
    harness.settle()
    harness.send(payments, {"id": "2", "card": "x", "at": at(59)})
    harness.settle()
    assert harness.rows(once)[-1]["at"] == at(125), (
        "of what is older than an hour before the watermark nothing is known"
    )
    assert harness.progress(once).late == 1
    assert {(row["card"], row["n"]) for row in harness.rows(hourly)} >= {("x", 2), ("y", 1)}


def refusal(spark: SparkSession, config: RunConfig, function: Callable[..., Any]) -> str:
    """The one problem of a node, told before any query starts."""
    from headrace.engine.plan import plan

    app, _, _ = search_app("wrong")
    app.topic("timeless", SEARCHES, key="id")
    app.topic("numbered", "search INT, link INT, at TIMESTAMP", key="link", event_time="at", lateness="1 minute")
    app.table("pages", "link INT, query STRING", key="link")
    app.stream(function)
    with pytest.raises(hr.PlanError) as caught:
        plan(app.topology(), spark, config)
    (problem,) = caught.value.problems
    assert problem.file.endswith(function.__code__.co_filename.rpartition("/")[2])
    assert problem.line > function.__code__.co_firstlineno, "it is told at the line of the call"
    return f"{problem.message}; {problem.next_step}"


def test_what_cannot_be_joined_is_told_before_any_query_starts(spark: SparkSession, config: RunConfig) -> None:
    any_on = {"id": "search"}

    def no_within(searches: Any, clicks: Any) -> Any:
        return hr.join(searches, clicks, on=any_on)

    def unlike(searches: Any, numbered: Any) -> Any:
        return hr.join(searches, numbered, on=any_on, within="1 minute")

    def unknown(searches: Any, clicks: Any) -> Any:
        return hr.join(searches, clicks, on={"id": "serch"}, within="1 minute")

    def timeless_side(searches: Any, timeless: Any) -> Any:
        return hr.join(searches, timeless.withColumnRenamed("query", "q"), on="id", within="1 minute")

    def clash(searches: Any) -> Any:
        return hr.join(searches, searches, on="id", within="1 minute")

    def odd_how(searches: Any, clicks: Any) -> Any:
        return hr.join(searches, clicks, on=any_on, within="1 minute", how="outer")

    def odd_on(searches: Any, clicks: Any) -> Any:
        return hr.join(searches, clicks, on=5, within="1 minute")  # type: ignore[arg-type]

    def with_table(clicks: Any, pages: Any) -> Any:
        return hr.join(clicks, pages, on="link", within="1 minute")

    def no_table(searches: Any, clicks: Any) -> Any:
        return hr.enrich(searches, clicks, on=any_on)

    def table_first(clicks: Any, pages: Any) -> Any:
        return hr.enrich(pages, clicks, on="link")

    def other_key(searches: Any, pages: Any) -> Any:
        return hr.enrich(searches, pages, on="query")

    def same_names(numbered: Any, pages: Any) -> Any:
        return hr.enrich(numbered.selectExpr("*", "1 AS query"), pages, on="link")

    def no_time(timeless: Any, pages: Any) -> Any:
        return hr.enrich(timeless.selectExpr("id", "1 AS link"), pages, on="link")

    def as_when(clicks: Any, pages: Any) -> Any:
        return hr.enrich(clicks, pages, on="link", as_of="then")

    def merged_one(clicks: Any) -> Any:
        return hr.merge(clicks)

    def merged_unlike(clicks: Any, searches: Any) -> Any:
        return hr.merge(clicks, searches)

    def merged_otherwise(clicks: Any, numbered: Any) -> Any:
        same = numbered.selectExpr("CAST(search AS STRING) AS search", "link", "at", "at - INTERVAL 1 DAY AS clicked")
        return hr.merge(clicks.selectExpr("*", "clicked + INTERVAL 1 DAY AS at"), same)

    def merged_timeless(searches: Any, timeless: Any) -> Any:
        return hr.merge(searches, timeless)

    def merged_result(clicks: Any) -> Any:
        corrected = hr.windowed(clicks, hr.tumbling("1 minute"), late="divert").agg(n=hr.count())
        return hr.merge(corrected, corrected)  # type: ignore[arg-type]

    def joined_result(searches: Any, clicks: Any) -> Any:
        corrected = hr.windowed(clicks, hr.tumbling("1 minute"), late="divert").agg(n=hr.count())
        return searches.join(corrected, "search")

    def once_by_two_names(clicks: Any) -> Any:
        return hr.dedup(clicks, on={"link": "search"}, within="1 minute")  # type: ignore[arg-type]

    def gathered_by_two_names(clicks: Any, searches: Any) -> Any:
        return hr.gather(clicks, searches, on={"search": "id"}, within="1 minute")  # type: ignore[arg-type]

    def forever(clicks: Any) -> Any:
        return hr.dedup(clicks, on="link")

    def again(clicks: Any) -> Any:
        return hr.dedup(hr.dedup(clicks, on="link", within="1 minute"), on="search", within="1 minute")

    def tell(function: Callable[..., Any]) -> str:
        return refusal(spark, config, function)

    assert "join() needs within=; add within=" in tell(no_within)
    assert "on: 'id' is string on the left, and 'search' int on the right; cast one of them" in tell(unlike)
    assert "on: 'serch' is not a column of the right; did you mean 'search'?" in tell(unknown)
    assert "join(): the rows have no event time" in tell(timeless_side)
    assert "both sides have 'query', 'searched'; rename it on one side: right.withColumnRenamed('query'" in tell(clash)
    assert "how: 'outer' is unknown" in tell(odd_how)
    assert "on is 5; name one or more columns" in tell(odd_on)
    assert "right is a table, not a stream; write hr.enrich" in tell(with_table)
    assert "the second argument is DataFrame, not a table; declare it with app.table" in tell(no_table)
    assert "stream is a table" in tell(table_first)
    assert "a table is looked up by its key, link, not by query; say on=['link']" in tell(other_key)
    assert "both sides have 'query'; rename it on one side: table.select(..., 'query AS its_query')" in tell(same_names)
    assert "enrich(): the rows have no event time" in tell(no_time)
    assert "as_of: 'then' is unknown" in tell(as_when)
    assert "merge() needs two or more streams" in tell(merged_one)
    assert "'search' is missing in stream 2, and string in stream 1; select the same columns" in tell(merged_unlike)
    assert "the event time of stream 2 is 'at', and that of stream 1 'clicked'" in tell(merged_otherwise)
    assert "the event time of stream 2 is none, and that of stream 1 'searched'" in tell(merged_timeless)
    assert "stream 1 is a windowed result with late rows or changes, not a DataFrame; return it" in tell(merged_result)
    assert "cannot be joined or unioned: it supports .having" in tell(joined_result)
    assert "on is {'link': 'search'}; name one or more columns" in tell(once_by_two_names)
    assert "on is {'search': 'id'}; name one or more columns" in tell(gathered_by_two_names)
    assert "dedup() needs within=" in tell(forever)
    assert "dedup(): the rows are the result of an operator with state, and have no watermark; move this" in tell(again)
