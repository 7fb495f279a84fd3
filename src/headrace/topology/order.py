"""Orders and cycles in a graph given as "what stands upstream of it"."""

from collections import deque
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TypeVar

__all__ = ["cycles_in", "is_upstream", "topological_order"]

T = TypeVar("T", bound=Hashable)
Upstreams = Mapping[T, Collection[T]]


def topological_order(items: Sequence[T], upstreams: Upstreams[T]) -> tuple[T, ...]:
    """Every item after all of its upstreams, and otherwise in the order given. There must be no cycle."""
    placed: dict[T, None] = {}
    waiting = list(items)
    while waiting:
        ready = next(item for item in waiting if all(upstream in placed for upstream in upstreams[item]))
        placed[ready] = None
        waiting.remove(ready)
    return tuple(placed)


def cycles_in(items: Sequence[T], upstreams: Upstreams[T]) -> list[tuple[T, ...]]:
    """Cycles that share no item, each the shortest through its first item, written downstream."""
    found: list[tuple[T, ...]] = []
    reported: set[T] = set()
    for item in items:
        if item not in reported and (path := _path_upstream(item, item, upstreams)):
            if reported.isdisjoint(path):
                # The path was walked upstream, and ends where it started.
                found.append((item, *reversed(path[:-1])))
            reported.update(path)
    return found


def is_upstream(item: T, of: T, upstreams: Upstreams[T]) -> bool:
    """Whether rows can get from the item to the other one."""
    return item == of or _path_upstream(of, item, upstreams) is not None


def _path_upstream(start: T, goal: T, upstreams: Upstreams[T]) -> list[T] | None:
    """The shortest way from start to goal by one or more steps upstream, without the start."""
    came_from: dict[T, T] = {}
    queue = deque([start])
    while queue:
        item = queue.popleft()
        for upstream in upstreams[item]:
            if upstream == goal:
                path = [upstream]
                while item != start:
                    path.append(item)
                    item = came_from[item]
                return path[::-1]
            if upstream not in came_from and upstream != start:
                came_from[upstream] = item
                queue.append(upstream)
    return None
