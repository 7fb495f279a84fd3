"""Parts of one event brought together, against a walk over all that came."""

import pickle
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.operators.chunks import MemoryChunks
from headrace.operators.gathering import Gather
from headrace.operators.operator import BEGINNING, RESULTS, Output, Run
from tests.operators.reference import Row, canonical, identity, micros, moment
from tests.operators.rows import FEW_OR_MANY

TIME = pa.timestamp("us", "UTC")
PARTS = {
    "paid": pa.schema([("id", pa.string()), ("zone", pa.float64()), ("at", TIME), ("amount", pa.decimal128(9, 2))]),
    "packed": pa.schema(
        [("at", TIME), ("tags", pa.map_(pa.string(), pa.int32())), ("zone", pa.float64()), ("id", pa.string())]
    ),
    "sent": pa.schema([("id", pa.string()), ("zone", pa.float64()), ("when", TIME)]),
}
TIMES = {"paid": "at", "packed": "at", "sent": "when"}

KEYS = st.tuples(st.sampled_from(["hot", "hot", "a", "b", None]), st.sampled_from([0.0, -0.0, float("nan")]))
ROWS = st.lists(st.tuples(st.sampled_from(list(PARTS)), KEYS, st.integers(-20, 60)), max_size=12)
STEPS = st.lists(st.tuples(ROWS, st.integers(-20, 80)), max_size=8)


def gather(within: int) -> Gather:
    return Gather(parts=tuple(PARTS.items()), times=tuple(TIMES.values()), on=("id", "zone"), within_us=within)


def part(name: str, key: tuple[Any, Any], time: int | None, number: int) -> Row:
    values = {"amount": None, "tags": [("number", number)]}
    row = {one: value for one, value in values.items() if one in PARTS[name].names}
    return {"id": key[0], "zone": key[1], TIMES[name]: None if time is None else moment(time), **row}


@dataclass
class Waiting:
    start: int
    latest: int
    parts: dict[str, Row] = field(default_factory=dict)
    ended: bool = False


@dataclass
class AllParts:
    within: int
    fired: int = BEGINNING
    waiting: dict[Any, Waiting] = field(default_factory=dict)

    def step(self, came: list[tuple[str, Row]], watermark: int) -> tuple[list[Row], int]:
        late, out = 0, []
        for key, one in list(self.waiting.items()):
            if one.ended and one.start + 2 * self.within <= self.fired:
                del self.waiting[key]
        for name, row in came:
            key, moment = identity([row["id"], row["zone"]]), row[TIMES[name]]
            one = self.waiting.get(key)
            if moment is None or micros(moment) + self.within <= self.fired or (one and one.ended):
                late += 1
                continue
            time = micros(moment)
            one = self.waiting.setdefault(key, Waiting(time, time))
            one.start, one.latest = min(one.start, time), max(one.latest, time)
            one.parts[name] = row
        for one in self.waiting.values():
            if not one.ended and (len(one.parts) == len(PARTS) or one.start + self.within <= watermark):
                one.ended = True
                out.append(self.row(one))
        self.fired = watermark
        return out, late

    def row(self, one: Waiting) -> Row:
        missing = [name for name in PARTS if name not in one.parts]
        some = next(iter(one.parts.values()))
        shown = {
            name: {field.name: one.parts[name][field.name] for field in schema if field.name not in ("id", "zone")}
            if name in one.parts
            else None
            for name, schema in PARTS.items()
        }
        at = moment(one.start + self.within if missing else one.latest)
        return {"id": some["id"], "zone": some["zone"], "gathered_at": at, **shown, "missing": missing}


def stepped(run: Run, came: list[tuple[str, Row]], watermark: int) -> Output:
    tables = {
        name: pa.Table.from_pylist([row for other, row in came if other == name], schema)
        for name, schema in PARTS.items()
        if any(other == name for other, _ in came)
    }
    return run.step(watermark, **tables)


def out(output: Output) -> list[Any]:
    return output.tables[RESULTS].to_pylist() if RESULTS in output.tables else []


@pytest.mark.parametrize("examples", FEW_OR_MANY)
def test_parts_come_out_together(examples: int) -> None:
    @settings(max_examples=2 * examples, deadline=None)
    @given(STEPS, st.integers(1, 30))
    def holds(steps: list[tuple[list[Any], int]], within: int) -> None:
        operator = pickle.loads(pickle.dumps(gather(within)))
        run, reference = Run(operator, MemoryChunks()), AllParts(within)
        number = 0
        for rows, watermark in [*steps, ([], 10**6)]:
            came = [(name, part(name, key, time, number + place)) for place, (name, key, time) in enumerate(rows)]
            number += len(rows)
            watermark = max(watermark, run.fired)
            expected, late = reference.step(came, watermark)
            output = stepped(run, came, watermark)
            for table in output.tables.values():
                assert table.schema == operator.outputs[RESULTS]
            assert canonical(out(output)) == canonical(expected)
            assert output.late == late

    holds()


def test_a_part_after_the_end_is_late_until_the_key_is_free_again() -> None:
    run = Run(gather(10), MemoryChunks())
    stepped(run, [(name, part(name, ("a", 0.0), 5, 1)) for name in PARTS], 6)
    again = ("paid", part("paid", ("a", 0.0), 14, 2))
    assert stepped(run, [again], 24).late == 1
    stepped(run, [], 25)
    later = stepped(run, [("paid", part("paid", ("a", 0.0), 20, 3)), ("sent", part("sent", ("a", 0.0), None, 3))], 30)
    assert later.late == 1
    (row,) = out(later)
    assert row["missing"] == ["packed", "sent"]
    assert row["gathered_at"] == moment(30)


def test_what_came_out_is_forgotten() -> None:
    run = Run(gather(10), MemoryChunks())
    for time in range(300):
        stepped(run, [(name, part(name, (f"k{time}", 0.0), time, 1)) for name in PARTS], time)
    kept = sum(len(run.chunks.read(name) or ()) for name in run.chunks.names())
    assert kept < 100
