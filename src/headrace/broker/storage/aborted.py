"""The aborted transactions of a partition, found by the offsets that a reader has fetched."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import NamedTuple


class Aborted(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int


_last_offset = attrgetter("last_offset")


class AbortedTransactions:
    """Ordered by the offset of the abort marker, which only grows. Transactions overlap, so first offsets do not."""

    def __init__(self, entries: Iterable[Aborted] = ()) -> None:
        self._entries: list[Aborted] = []
        # The entries that begin before all later ones, with their places: of those that begin before an offset, the
        # last in the list is among them. Both lists grow.
        self._lowest_firsts: list[int] = []
        self._lowest_places: list[int] = []
        for entry in entries:
            self.add(entry)

    def __iter__(self) -> Iterator[Aborted]:
        return iter(self._entries)

    def add(self, entry: Aborted) -> None:
        while self._lowest_firsts and self._lowest_firsts[-1] >= entry.first_offset:
            self._lowest_firsts.pop()
            self._lowest_places.pop()
        self._lowest_firsts.append(entry.first_offset)
        self._lowest_places.append(len(self._entries))
        self._entries.append(entry)

    def between(self, start: int, end: int) -> list[Aborted]:
        """Those with records in [start, end)."""
        lowest = bisect_left(self._lowest_firsts, end)
        if not lowest:
            return []
        stop = self._lowest_places[lowest - 1] + 1
        begin = bisect_left(self._entries, start, hi=stop, key=_last_offset)
        return [entry for entry in self._entries[begin:stop] if entry.first_offset < end]

    def ended_from(self, offset: int) -> list[Aborted]:
        """Those whose marker is not before `offset`."""
        return self._entries[bisect_left(self._entries, offset, key=_last_offset) :]
