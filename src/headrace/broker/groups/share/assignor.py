"""Which members of a share group read which partitions. A partition can have several members, and has at least one."""

from collections.abc import Iterable, Mapping, Set
from uuid import UUID

Place = tuple[UUID, int]
Assignment = dict[str, frozenset[Place]]


def assign(wanted: Mapping[str, Set[Place]], before: Mapping[str, Set[Place]]) -> Assignment:
    """Every partition has a member and every member a partition, evenly; what can stay as it was before, stays."""
    places = sorted(set().union(*wanted.values())) if wanted else []
    assigned: dict[str, set[Place]] = {member: set() for member in wanted}
    holders: dict[Place, int] = dict.fromkeys(places, 0)
    if not places:
        return {member: frozenset() for member in wanted}
    of_member, members_with_more = divmod(len(places), len(wanted))
    of_place, places_with_more = divmod(len(wanted), len(places))

    def give(member: str, place: Place) -> None:
        assigned[member].add(place)
        holders[place] += 1

    for member in wanted:
        for place in sorted(before.get(member, frozenset()) & wanted[member]):
            extra_of_member = max(len(assigned[member]) + 1 - max(of_member, 1), 0)
            extra_of_place = max(holders[place] + 1 - max(of_place, 1), 0)
            if extra_of_member > (of_member > 0 and members_with_more > 0) or (
                extra_of_place > (of_place > 0 and places_with_more > 0)
            ):
                continue
            members_with_more -= extra_of_member
            places_with_more -= extra_of_place
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
