import pickle
from datetime import timedelta
from typing import Any

import pytest

import headrace.topology as hr
from headrace.errors import InputError
from headrace.topology import AggregateKind, Duration

MINUTE = Duration.of("1 minute")
HOUR = Duration.of("1 hour")


def test_windows_are_values() -> None:
    assert hr.tumbling("1 hour") == hr.Tumbling(HOUR) == hr.tumbling(timedelta(hours=1))
    assert hr.hopping("1 hour", "1 minute") == hr.Hopping(HOUR, MINUTE)
    assert hr.sliding("1 minute") == hr.Sliding(MINUTE)
    assert hr.session("1 minute") == hr.GapSession(MINUTE)
    assert hr.session(opens="type = 'login'", timeout="1 hour", since="first") == hr.EventSession(
        "type = 'login'", HOUR, hr.Since.FIRST, None
    )


def test_windows_say_what_they_are() -> None:
    windows = [
        hr.tumbling("1 hour"),
        hr.hopping("1 hour", every="1 minute"),
        hr.sliding("5 minutes"),
        hr.session("1 minute"),
        hr.session(opens="a = 1", timeout="1 hour"),
        hr.session(opens="a = 1", timeout="1 hour", closes="a = 2"),
    ]
    assert [str(window) for window in windows] == [
        "tumbling 1 hour",
        "hopping 1 hour every 1 minute",
        "sliding 5 minutes",
        "session with gaps under 1 minute",
        "session from a = 1 to 1 hour after its last event",
        "session from a = 1 to a = 2 or 1 hour after its last event",
    ]


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: hr.tumbling("0 seconds"), "a tumbling window's size is zero"),
        (lambda: hr.sliding("0 seconds"), "a sliding window's size is zero"),
        (lambda: hr.tumbling("soon"), "'soon' is not a duration"),
        (
            lambda: hr.hopping("1 minute", "1 hour"),
            "leaves gaps that no window covers; set `every` to at most 1 minute",
        ),
        (lambda: hr.hopping("1 minute", "0 seconds"), "`every` is zero"),
        (lambda: hr.session(), "either a gap, or opens= and timeout="),
        (lambda: hr.session("1 minute", opens="a"), "either a gap, or opens= and timeout="),
        (lambda: hr.session(opens="a"), "either a gap, or opens= and timeout="),
        (lambda: hr.session(closes="a", timeout="1 hour"), "either a gap, or opens= and timeout="),
        (lambda: hr.session("0 seconds"), "a session's gap is zero"),
        (lambda: hr.session(opens=" ", timeout="1 hour"), "`opens` is empty"),
        (lambda: hr.session(opens="a", closes="", timeout="1 hour"), "`closes` is empty"),
        (lambda: hr.session(opens="a", timeout="1 hour", since="frist"), "did you mean 'first'?"),
    ],
)
def test_windows_that_make_no_sense_are_refused(make: Any, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert problem in str(caught.value)


def test_aggregates_are_values() -> None:
    aggregates = [
        hr.count(),
        hr.count("id"),
        hr.sum("amount"),
        hr.min("amount"),
        hr.max("amount"),
        hr.mean("amount"),
        hr.first("id"),
        hr.last("id"),
        hr.count_distinct("id"),
        hr.collect("id"),
    ]
    assert [str(aggregate) for aggregate in aggregates] == [
        "count(*)",
        "count(id)",
        "sum(amount)",
        "min(amount)",
        "max(amount)",
        "mean(amount)",
        "first(id)",
        "last(id)",
        "count_distinct(id)",
        "collect(id)",
    ]
    assert hr.sum("amount") == hr.Aggregate(AggregateKind.SUM, "amount")
    assert {aggregate.kind for aggregate in aggregates} == set(AggregateKind)


@pytest.mark.parametrize("column", ["", "  ", None, 5])
def test_an_aggregate_takes_a_column(column: Any) -> None:
    with pytest.raises(InputError, match="needs the name of a column"):
        hr.sum(column)


def test_an_aggregate_is_named_by_its_keyword() -> None:
    with pytest.raises(InputError, match=r"hr.sum has no .alias.*write .agg\(total=hr.sum\(\"amount\"\)\)"):
        hr.sum("amount").alias("total")  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"write hr.count\(\) to count rows"):
        hr.count("*")
    assert pickle.loads(pickle.dumps(hr.sum("amount"))) == hr.sum("amount")
