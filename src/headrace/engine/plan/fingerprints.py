"""What changed between two fingerprints of a node, in words."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["OPERATORS", "changes"]

OPERATORS = "operators"
"""The part of a fingerprint about Spark's stateful operators; absent if there are none."""
OF_STATE = (OPERATORS, "windows", "output_mode", "partitions")

NAMES = {
    "kind": "its kind",
    "key": "its key",
    "lateness": "its lateness",
    "event_time": "its event time",
    "order_by": "order_by",
    "channels": "its channels",
    "rejects": "the topics whose rejected records it writes",
    "output_mode": "emit",
    "partitions": "state-partitions",
    OPERATORS: "the list of its stateful operators in Spark",
}
WINDOW_NAMES = {"by": "the key of {}", "time": "the time of {}", "late": "late of {}", "window": "{}"}
EMITS = {"append": "final", "update": "changes"}


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """A sentence for each change; none if both are the same."""
    found = list(_sources(before.get("sources", {}), now.get("sources", {})))
    if (OPERATORS in before) != (OPERATORS in now):
        found.append("it had state and now has none" if OPERATORS in before else "it had no state and now has some")
        before, now = (_without(side, OF_STATE) for side in (before, now))
    found += _windows(before.get("windows", []), now.get("windows", []))
    rest = [_without(side, ("sources", "windows", OPERATORS)) for side in (before, now)]
    found += _each(rest[0], rest[1], {name: NAMES.get(name, name) for name in {**rest[0], **rest[1]}})
    if not found:
        # Headrace's own windows are compared above. Spark's operators matter for queries that do not use those.
        found += _compared(NAMES[OPERATORS], before.get(OPERATORS), now.get(OPERATORS))
    return found


def _sources(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*before, *now}):
        if name not in before:
            yield f"it now reads {name}"
        elif name not in now:
            yield f"it no longer reads {name}"
        else:
            said = {known: f"{known.replace('_', ' ')} of {name}" for known in {**before[name], **now[name]}}
            yield from _each(before[name], now[name], said)


def _windows(before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if len(before) != len(now):
        yield from _compared(
            "the list of its windows", [one.get("window") for one in before], [one.get("window") for one in now]
        )
        return
    for index, (old, new) in enumerate(zip(before, now, strict=True)):
        window = "its window" if len(now) == 1 else f"its window {index + 1}"
        old_aggregates, new_aggregates = old.get("aggregates", {}), new.get("aggregates", {})
        names = {name: WINDOW_NAMES.get(name, f"{name} of {{}}").format(window) for name in {**old, **new}}
        yield from _each(_without(old, ("aggregates",)), _without(new, ("aggregates",)), names)
        named = {name: f"the aggregate {name}" for name in {**old_aggregates, **new_aggregates}}
        yield from _each(old_aggregates, new_aggregates, named)


def _each(before: Mapping[str, Any], now: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({*before, *now}):
        if name not in before:
            yield f"{names[name]} is new: {_shown(now[name])}"
        elif name not in now:
            yield f"{names[name]} was removed: it was {_shown(before[name])}"
        elif name == "output_mode":
            yield from _compared(names[name], *(EMITS.get(side[name], side[name]) for side in (before, now)))
        else:
            yield from _compared(names[name], before[name], now[name])


def _compared(name: str, before: Any, now: Any) -> Iterator[str]:
    if before != now:
        yield f"{name} was {_shown(before)} and is {_shown(now)}"


def _shown(value: Any) -> str:
    match value:
        case None:
            return "none"
        case list():
            return ", ".join(map(_shown, value)) or "none"
        case dict():
            return ", ".join(f"{name} {_shown(one)}" for name, one in value.items()) or "none"
        case _:
            return str(value)


def _without(fingerprint: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in fingerprint.items() if name not in names}
