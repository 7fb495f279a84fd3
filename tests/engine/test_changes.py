"""What changed in a node, told in words: all of it, and never as the JSON it is kept as."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.plan.fingerprints import changes

WINDOW = {
    "window": "tumbling 1 minute",
    "by": ["card"],
    "time": "at",
    "late": "drop",
    "aggregates": {"n": "count(*)", "total": "sum(amount)"},
}
FINGERPRINT: dict[str, Any] = {
    "kind": "stream",
    "key": ["card"],
    "lateness": "10 seconds",
    "event_time": None,
    "channels": [],
    "rejects": ["topic payments"],
    "sources": {"topic payments": {"kind": "topic", "lateness": "10 seconds", "event_time": "at", "ahead": "1 hour"}},
    "windows": [WINDOW],
    "operators": ["Aggregate: card, window, count(1) AS n, 60000000L"],
    "output_mode": "append",
    "partitions": 2,
}


def window(**said: Any) -> dict[str, Any]:
    return {"windows": [WINDOW | said], "operators": [f"Aggregate: something else {said}"]}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, []),
        (window(window="tumbling 2 minutes"), ["its window was tumbling 1 minute and is tumbling 2 minutes"]),
        (window(by=["card", "country"]), ["the key of its window was card and is card, country"]),
        (
            window(aggregates={"n": "count(id)", "least": "min(amount)"}),
            [
                "the aggregate least is new: min(amount)",
                "the aggregate n was count(*) and is count(id)",
                "the aggregate total was removed: it was sum(amount)",
            ],
        ),
        (
            {"windows": [WINDOW, WINDOW | {"window": "tumbling 1 hour"}]},
            ["the list of its windows was tumbling 1 minute and is tumbling 1 minute, tumbling 1 hour"],
        ),
        ({"partitions": 4}, ["state-partitions was 2 and is 4"]),
        ({"output_mode": "update"}, ["emit was final and is changes"]),
        ({"event_time": "window_end"}, ["its event time was none and is window_end"]),
        ({"operators": ["Deduplicate: id"]}, ["the list of its stateful operators in Spark was Aggregate: card, "
         "window, count(1) AS n, 60000000L and is Deduplicate: id"]),
        (
            {"sources": {"topic orders": {}}},
            ["it now reads topic orders", "it no longer reads topic payments"],
        ),
        ({"of_a_later_version": {"a": [1], "b": {}}}, ["of_a_later_version is new: a 1, b none"]),
    ],
)  # fmt: skip
def test_a_change_is_told_in_words(changed: dict[str, Any], told: list[str]) -> None:
    assert changes(FINGERPRINT, FINGERPRINT | changed) == told


def test_state_that_comes_or_goes() -> None:
    without = {name: value for name, value in FINGERPRINT.items() if name in ("kind", "key", "sources")}
    stateful = without | {"operators": ["Deduplicate: id"], "windows": [], "output_mode": "append", "partitions": 2}
    assert changes(without, stateful) == ["it had no state and now has some"]
    assert changes(stateful, without) == ["it had state and now has none"]


PLAIN = st.none() | st.integers(0, 3) | st.sampled_from(["a", "b"]) | st.lists(st.sampled_from(["a", "b"]), max_size=2)
NAMED = st.dictionaries(st.sampled_from(["kind", "lateness", "window", "else"]), PLAIN, max_size=3)
WINDOWS = st.builds(lambda named, aggregates: named | {"aggregates": aggregates}, NAMED, NAMED)
FINGERPRINTS = st.fixed_dictionaries(
    {"kind": PLAIN, "sources": st.dictionaries(st.sampled_from(["topic a", "topic b"]), NAMED)},
    optional={
        "windows": st.lists(WINDOWS, max_size=2),
        "operators": st.lists(st.sampled_from(["x", "y"]), min_size=1, max_size=2),
        "output_mode": st.sampled_from(["append", "update"]),
        "unheard-of": NAMED,
    },
)


@given(FINGERPRINTS, FINGERPRINTS)
def test_no_change_is_passed_over(before: dict[str, Any], now: dict[str, Any]) -> None:
    told = changes(before, now)
    # No windows, and an empty list of them, are the same.
    same = all({"windows": [], **before}.get(name) == {"windows": [], **now}.get(name) for name in {**before, **now})
    assert (not told) == (same and before.keys() | {"windows"} == now.keys() | {"windows"})
    assert not [sentence for sentence in told if set(sentence) & set("[]{}\"'")]
