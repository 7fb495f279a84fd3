from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InputError
from headrace.topology.duration import LONGEST, Duration

microseconds = st.integers(0, LONGEST)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5 minutes", timedelta(minutes=5)),
        ("1 minute", timedelta(minutes=1)),
        ("1 hour 30 minutes", timedelta(hours=1, minutes=30)),
        ("  2  Hours\t1SECOND ", timedelta(hours=2, seconds=1)),
        ("2 weeks", timedelta(days=14)),
        ("10 milliseconds 7 microseconds", timedelta(microseconds=10_007)),
        ("0 seconds", timedelta()),
        ("30s", timedelta(seconds=30)),
        ("1h 5min", timedelta(hours=1, minutes=5)),
        ("1m 250ms", timedelta(minutes=1, milliseconds=250)),
    ],
)
def test_words_are_read(text: str, expected: timedelta) -> None:
    assert Duration.of(text).timedelta == expected


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("", "empty"),
        ("   ", "not a duration"),
        ("minutes", "not a duration"),
        ("5", "not a duration"),
        ("-5 minutes", "not a duration"),
        ("1.5 seconds", "not a duration"),
        ("5 minutes and", "not a duration"),
        ("5 secnds", "did you mean 'seconds'?"),
        ("5 fortnights", "unknown unit 'fortnights'"),
        ("1 month", "no fixed length"),
        ("1 minute 2 minutes", "twice"),
        ("9999999999999 days", "64 bits"),
        ("9" * 5000 + " days", "not a duration"),
        ("٥ minutes", "not a duration"),
        (timedelta(seconds=-1), "negative"),
        (timedelta.max, "64 bits"),
        (5, "5 is not a duration"),
        (None, "None is not a duration"),
    ],
)
def test_what_is_no_duration_is_refused(value: object, problem: str) -> None:
    with pytest.raises(InputError, match=problem.replace("?", r"\?")):
        Duration.of(value)  # type: ignore[arg-type]


@given(microseconds)
def test_its_words_are_read_back(count: int) -> None:
    assert Duration.of(str(Duration(count))).microseconds == count


@given(st.timedeltas(min_value=timedelta(), max_value=timedelta(days=100_000_000)))
def test_a_timedelta_keeps_its_microseconds(span: timedelta) -> None:
    assert Duration.of(span).timedelta == span


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        Duration.of(text)
    except InputError:
        pass


@given(microseconds, microseconds)
def test_durations_are_ordered_by_length(one: int, other: int) -> None:
    assert (Duration(one) < Duration(other)) == (one < other)
