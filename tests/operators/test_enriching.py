"""Events beside what was valid at their time, against a walk over all that was ever written."""

import pickle
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.operators.chunks import MemoryChunks
from headrace.operators.enriching import DELETES_KEPT_US, Enrich
from headrace.operators.operator import BEGINNING, RESULTS, Output, Run
from tests.operators.reference import Row, canonical, identity, micros, moment
from tests.operators.rows import FEW_OR_MANY

TIME = pa.timestamp("us", "UTC")
STREAM = pa.schema([("id", pa.int64()), ("card", pa.string()), ("zone", pa.float64()), ("at", TIME)])
TABLE = pa.schema(
    [
        ("number", pa.string()),
        ("zone", pa.float64()),
        ("owner", pa.struct([("name", pa.string()), ("tags", pa.map_(pa.string(), pa.int32()))])),
        ("limit", pa.decimal128(12, 2)),
        ("_time", TIME),
        ("_order", pa.int64()),
        ("_deleted", pa.bool_()),
    ]
)
ADDED = ["owner", "limit"]

KEYS = st.tuples(st.sampled_from(["hot", "hot", "a", "", None]), st.sampled_from([1.0, 0.0, -0.0, float("nan")]))
EVENTS = st.lists(st.tuples(KEYS, st.integers(-30, 60)), max_size=10)
CHANGES = st.lists(st.tuples(KEYS, st.integers(-30, 60), st.booleans()), max_size=8)
STEPS = st.lists(st.tuples(CHANGES, EVENTS, st.integers(-30, 70)), max_size=8)

AsOf = Literal["event", "now"]
How = Literal["inner", "left"]


def enrich(as_of: AsOf = "event", how: How = "left", wait: int = 0, backdates: bool = False) -> Enrich:
    on = (("card", "number"), ("zone", "zone"))
    return Enrich(
        on=on, time="at", stream=STREAM, table=TABLE, as_of=as_of, how=how, wait_us=wait, backdates_first=backdates
    )


def version(key: tuple[Any, Any], time: int, order: int, deleted: bool = False) -> Row:
    value = {"name": f"n{order}", "tags": [("order", order)]}
    shown: Row = {"owner": None if deleted else value, "limit": None}
    return {"number": key[0], "zone": key[1], **shown, "_time": moment(time), "_order": order, "_deleted": deleted}


def event(number: int, key: tuple[Any, Any], time: int) -> Row:
    return {"id": number, "card": key[0], "zone": key[1], "at": moment(time)}


@dataclass
class AllVersions:
    operator: Enrich
    fired: int = BEGINNING
    versions: list[Row] = field(default_factory=list)
    waiting: list[Row] = field(default_factory=list)

    def step(self, changes: list[Row], events: list[Row], watermark: int) -> tuple[list[Row], Output]:
        """The answers, and what is counted."""
        self.versions += changes
        wait, oldest = self.operator.wait_us, self.fired - self.operator.wait_us
        late = [one for one in events if micros(one["at"]) < oldest]
        self.waiting += events
        due = [one for one in self.waiting if not wait or micros(one["at"]) + wait < watermark or one in late]
        self.waiting = [one for one in self.waiting if one not in due]
        found = [self.found(one, oldest) for one in due]
        early = [one for one in due if self.is_early(one) and micros(one["at"]) >= oldest]
        self.fired = watermark
        kept = [(one, row) for one, row in zip(due, found, strict=True) if row or self.operator.how == "left"]
        answers = [{**one, **{name: row[name] if row else None for name in ADDED}} for one, row in kept]
        counted = len(late) if self.operator.as_of == "event" else 0
        return answers, Output({}, counted, found.count(None), len(early))

    def of_key(self, one: Row) -> list[Row]:
        """All versions of the event's key, the oldest first."""
        if one["card"] is None:
            return []
        mine = [row for row in self.versions if identity([row["number"], row["zone"]]) == key_of(one)]
        timed = self.operator.as_of == "event"
        return sorted(mine, key=lambda row: (row["_time"] if timed else 0, row["_order"]))

    def is_early(self, one: Row) -> bool:
        mine = self.of_key(one)
        exact = self.operator.as_of == "event" and not self.operator.backdates_first
        return exact and bool(mine) and all(row["_time"] > one["at"] for row in mine)

    def found(self, one: Row, oldest: int) -> Row | None:
        mine, timed = self.of_key(one), self.operator.as_of == "event"
        as_of = max(micros(one["at"]), oldest)
        seen = [row for row in mine if not timed or micros(row["_time"]) <= as_of]
        last = next(iter([*seen[-1:], *mine]), None)
        if last is None or last["_deleted"]:
            return None
        backdated = self.operator.backdates_first and last is mine[0]
        return last if backdated or not timed or last["_time"] <= one["at"] else None


def key_of(one: Row) -> Any:
    return identity([one["card"], one["zone"]])


@pytest.mark.parametrize("examples", FEW_OR_MANY)
@pytest.mark.parametrize("wait", [0, 9])
@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize(("as_of", "backdates"), [("event", False), ("event", True), ("now", False)])
def test_events_see_what_was_valid(as_of: AsOf, backdates: bool, how: How, wait: int, examples: int) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(STEPS)
    def holds(steps: list[tuple[list[Any], list[Any], int]]) -> None:
        operator = pickle.loads(pickle.dumps(enrich(as_of, how, wait, backdates)))
        run, reference = Run(operator, MemoryChunks()), AllVersions(operator)
        order = number = 0
        for changed, happened, watermark in [*steps, ([], [], 10**6)]:
            changes = [version(*one[:2], order + place, one[2]) for place, one in enumerate(changed)]
            events = [event(number + place, *one) for place, one in enumerate(happened)]
            order, number = order + len(changes), number + len(events)
            expected, counted = reference.step(changes, events, max(watermark, run.fired))
            output = run.step(
                watermark, table=pa.Table.from_pylist(changes[::-1], TABLE), stream=pa.Table.from_pylist(events, STREAM)
            )
            got = output.tables.get(RESULTS, operator.outputs[RESULTS].empty_table())
            assert got.schema == operator.outputs[RESULTS]
            assert canonical(got.to_pylist()) == canonical(expected)
            assert (output.late, output.unmatched, output.early) == (counted.late, counted.unmatched, counted.early)
        assert not [name for name in run.chunks.names() if name.startswith("waiting")]

    holds()


def table(*rows: Row) -> pa.Table:
    return pa.Table.from_pylist(list(rows), TABLE)


def stream(*rows: Row) -> pa.Table:
    return pa.Table.from_pylist(list(rows), STREAM)


def names(output: Any) -> list[str | None]:
    return [row["owner"] and row["owner"]["name"] for row in output.tables[RESULTS].to_pylist()]


def test_versions_that_no_event_can_see_are_forgotten() -> None:
    run = Run(enrich(), MemoryChunks())
    key = ("a", 1.0)
    for time in range(200):
        run.step(time - 5, table=table(version(key, time, time)))
    kept = sum(len(run.chunks.read(name) or ()) for name in run.chunks.names())
    assert kept < 30
    assert names(run.step(195, stream=stream(event(1, key, 197), event(2, key, 10)))) == ["n197", None]


def test_a_late_event_sees_the_row_that_was_valid_then_or_none_but_never_a_later_one() -> None:
    run = Run(enrich(), MemoryChunks())
    changed, unchanged = ("a", 1.0), ("b", 1.0)
    run.step(0, table=table(version(changed, 0, 0), version(changed, 50, 1), version(unchanged, 0, 2)))
    run.step(100, stream=stream(event(1, changed, 100)))
    output = run.step(100, stream=stream(event(2, changed, 40), event(3, changed, 60), event(4, unchanged, 40)))
    assert names(output) == [None, "n1", "n2"]
    assert output.late == 3


@pytest.mark.parametrize("as_of", ["event", "now"])
def test_deletes_are_forgotten_in_the_end(as_of: AsOf) -> None:
    run = Run(enrich(as_of), MemoryChunks())
    run.step(0, table=table(*(version((str(number), 1.0), 0, number) for number in range(50))))
    run.step(0, table=table(*(version((str(number), 1.0), 1, 50 + number, deleted=True) for number in range(50))))
    run.step(DELETES_KEPT_US + 10)
    run.step(DELETES_KEPT_US + 10, table=table(*(version(("a", 1.0), 2, 100 + number) for number in range(60))))
    kept = [run.chunks.read(name) for name in run.chunks.names()]
    assert sum(len(rows) for rows in kept if rows is not None) == 1


def test_a_small_change_does_not_rewrite_a_large_table() -> None:
    run = Run(enrich(), MemoryChunks())
    run.step(0, table=table(*(version((str(number), 1.0), 0, number) for number in range(1000))))
    assert isinstance(run.chunks, MemoryChunks)
    before = dict(run.chunks.blobs)
    run.step(0, table=table(version(("5", 1.0), 0, 1000)))
    assert before.items() <= run.chunks.blobs.items()
    assert names(run.step(0, stream=stream(event(1, ("5", 1.0), 0), event(2, ("6", 1.0), 0)))) == ["n1000", "n6"]


def test_an_event_without_a_time_is_late_and_sees_no_row() -> None:
    run = Run(enrich(), MemoryChunks())
    run.step(10, table=table(version(("a", 1.0), 5, 0), version(("a", 1.0), 11, 1)))
    output = run.step(10, stream=stream(event(1, ("a", 1.0), 0) | {"at": None}))
    assert names(output) == [None]
    assert output.late == 1


def test_the_first_row_of_a_key_counts_for_earlier_events_until_it_is_removed() -> None:
    run = Run(enrich(backdates=True), MemoryChunks())
    run.step(0, table=table(version(("a", 1.0), 50, 0), version(("a", 1.0), 60, 1), version(("b", 1.0), 50, 2)))
    output = run.step(0, stream=stream(event(1, ("a", 1.0), 10), event(2, ("a", 1.0), 55), event(3, ("c", 1.0), 55)))
    assert names(output) == ["n0", "n0", None]
    assert (output.unmatched, output.early) == (1, 0)
    run.step(100)
    run.step(100, table=table(*(version(("c", 1.0), 90, 3 + number) for number in range(9))))
    output = run.step(100, stream=stream(event(4, ("a", 1.0), 10), event(5, ("b", 1.0), 10), event(6, ("a", 1.0), 60)))
    assert names(output) == [None, "n2", "n1"], "the first row of a was replaced, that of b holds"
    assert (output.late, output.unmatched, output.early) == (3, 1, 0)


def test_state_without_a_note_of_removed_rows_is_read_and_stays_exact() -> None:
    chunks = MemoryChunks()
    Run(enrich(), chunks).step(0, table=table(version(("a", 1.0), 50, 0)))
    run = Run(enrich(backdates=True), chunks)
    run.step(0, table=table(version(("b", 1.0), 50, 1)))
    output = run.step(0, stream=stream(event(1, ("a", 1.0), 10), event(2, ("b", 1.0), 10), event(3, ("a", 1.0), 50)))
    assert names(output) == [None, "n1", "n0"]
    assert (output.unmatched, output.early) == (1, 1)


def test_events_older_than_the_first_row_of_their_key_are_counted() -> None:
    run = Run(enrich(how="inner"), MemoryChunks())
    run.step(0, table=table(version(("a", 1.0), 50, 0)))
    output = run.step(0, stream=stream(event(1, ("a", 1.0), 10), event(2, ("a", 1.0), 50), event(3, ("c", 1.0), 10)))
    assert names(output) == ["n0"]
    assert (output.late, output.unmatched, output.early) == (0, 2, 1)
