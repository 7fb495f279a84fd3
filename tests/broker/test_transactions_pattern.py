"""Patterns of ListTransactions: the texts they describe are those Python's own engine says, in linear time."""

import re
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.broker.transactions.pattern import InvalidPattern, Pattern

ATOMS = st.sampled_from(
    ["a", "b", "-", ".", r"\.", "[ab]", "[^a]", "[a-c-]", r"\d", r"\w", r"[\d_]", "1", "_", "^", "$", "{", r"[\]a]"]
)
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,}", "{0,2}", "*?"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=8,
)


@settings(max_examples=400, deadline=None)
@given(EXPRESSIONS, st.lists(st.text("ab-.1_{]", max_size=6), min_size=1, max_size=5))
@example("a|b|", ["", "a", "ab"])
def test_describes_what_the_standard_engine_says(expression: str, texts: list[str]) -> None:
    pattern = Pattern(expression)
    # Python's $ also stands before a last line break; RE2's does not.
    expected = re.compile(expression.replace("$", r"\Z"), re.ASCII)
    for text in texts:
        assert pattern.matches(text) == bool(expected.fullmatch(text)), text


@pytest.mark.parametrize(
    "expression",
    ["(", ")", "a)", "*a", "a**", "a{2}{3}", "[a", "[b-a]", "\\", r"\1", r"\b", "(?=a)", "(?i)a", "a{1001}", "a{3,2}",
     "(a{1000}){1000}", "(" * 500 + ")" * 500, "(?<1>a)", "[[:alpha:]]"],
)  # fmt: skip
def test_refuses_what_it_does_not_serve(expression: str) -> None:
    with pytest.raises(InvalidPattern):
        Pattern(expression)


def test_takes_linear_time_for_what_makes_others_backtrack() -> None:
    began = time.perf_counter()
    assert not Pattern("(a*)*(a|aa)+" + ".*" * 20 + "b").matches("a" * 5_000)
    assert time.perf_counter() - began < 5
