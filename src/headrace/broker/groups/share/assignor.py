"""Which members of a share group read which partitions. A partition can have several members, and has at least one."""

from collections.abc import Iterable, Mapping, Set
from uuid import UUID

Place = tuple[UUID, int]
Assignment = dict[str, frozenset[Place]]


class _Quota:
    """How much each may have: an even share, but at least one, and one more for as many as that leaves over."""

    def __init__(self, things: int, takers: int) -> None:
        self._share, self._left_over = divmod(things, takers)
        if not self._share:
            self._share, self._left_over = 1, 0

    def allows_more_than(self, held: int) -> bool:
        return held < self._share or (held == self._share and self._left_over > 0)

    def raised_from(self, held: int) -> None:
        if held == self._share:
            self._left_over -= 1


def assign(wanted: Mapping[str, Set[Place]], before: Mapping[str, Set[Place]]) -> Assignment:
    """Every partition has a member and every member a partition, evenly; what can stay as it was before, stays."""
    places = sorted(set().union(*wanted.values()))
    if not places:
        return {member: frozenset() for member in wanted}
    assigned: dict[str, set[Place]] = {member: set() for member in wanted}
    holders: dict[Place, int] = dict.fromkeys(places, 0)
    of_member, of_place = _Quota(len(places), len(wanted)), _Quota(len(wanted), len(places))

    def give(member: str, place: Place) -> None:
        assigned[member].add(place)
        holders[place] += 1

    for member in wanted:
        for place in sorted(before.get(member, frozenset()) & wanted[member]):
            held, held_by = len(assigned[member]), holders[place]
            if of_member.allows_more_than(held) and of_place.allows_more_than(held_by):
                of_member.raised_from(held)
                of_place.raised_from(held_by)
                give(member, place)
    for place in places:
        if not holders[place]:
            give(min((m for m in wanted if place in wanted[m]), key=lambda m: len(assigned[m])), place)
    for member, choice in wanted.items():
        if not assigned[member] and choice:
            give(member, min(sorted(choice), key=holders.__getitem__))
    return {member: frozenset(found) for member, found in assigned.items()}


def by_topic(places: Iterable[Place]) -> dict[UUID, list[int]]:
    found: dict[UUID, list[int]] = {}
    for topic_id, partition in sorted(places):
        found.setdefault(topic_id, []).append(partition)
    return found
