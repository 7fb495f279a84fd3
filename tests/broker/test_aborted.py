"""The look-up of aborted transactions against the plain definition, and how many of them it looks at."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.storage.aborted import Aborted, AbortedTransactions

# Each transaction: the distance of its marker from the one before, and how long it was open.
transactions = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 60)), max_size=60)
offsets = st.integers(0, 320)


def made(given: list[tuple[int, int]]) -> list[Aborted]:
    marker, entries = 0, []
    for number, (step, length) in enumerate(given):
        marker += step
        entries.append(Aborted(number, max(0, marker - length), marker))
    return entries


@given(transactions, offsets, offsets)
def test_a_range_finds_every_transaction_with_records_in_it(
    given: list[tuple[int, int]], start: int, length: int
) -> None:
    entries = made(given)
    found = AbortedTransactions(entries).between(start, start + length)
    assert found == [e for e in entries if e.last_offset >= start and e.first_offset < start + length]


@given(transactions, offsets)
def test_those_that_ended_from_an_offset_on(given: list[tuple[int, int]], offset: int) -> None:
    entries = made(given)
    assert AbortedTransactions(entries).ended_from(offset) == [e for e in entries if e.last_offset >= offset]


def test_a_reader_pays_for_what_it_finds_and_not_for_the_whole_log() -> None:
    looked_at: set[int] = set()

    class Seen(Aborted):
        def __getattribute__(self, name: str) -> object:
            if name.endswith("_offset"):
                looked_at.add(super().__getattribute__("producer_id"))
            return super().__getattribute__(name)

    aborted = AbortedTransactions(Seen(number, number * 10, number * 10 + 9) for number in range(100_000))
    looked_at.clear()
    for start in (0, 500_000, 999_900):
        assert len(aborted.between(start, start + 100)) == 10
    assert len(looked_at) < 150
