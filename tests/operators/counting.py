"""A small operator of the tests' own: rows by key and minute, of any number of inputs, told when the minute is over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.operators.chunks import Chunks
from headrace.operators.operator import LATE, RESULTS, Output, Step

MINUTE = 60_000_000
ROWS = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("n", pa.int64())])


@dataclass(frozen=True)
class Counting:
    names: tuple[str, ...] = (RESULTS,)
    version: int = 1
    waits: bool = True

    @property
    def inputs(self) -> Mapping[str, pa.Schema]:
        return dict.fromkeys(self.names, ROWS)

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        counted = [(f"of_{name or 'rows'}", pa.int64()) for name in self.names]
        return {RESULTS: pa.schema([("k", pa.string()), ("minute", pa.int64()), *counted]), LATE: ROWS}

    def step(self, chunks: Chunks, step: Step) -> Output:
        late = []
        for name, rows in step.rows.items():
            minutes = pc.floor(pc.divide(pc.cast(rows["at"], pa.int64()), float(MINUTE))).cast(pa.int64())
            on_time = pc.greater(pc.multiply(pc.add(minutes, 1), MINUTE), step.fired)
            late.append(rows.filter(pc.invert(on_time)))
            kept = pa.table({"k": rows["k"], "minute": minutes, "input": pa.array([name] * len(rows))}).filter(on_time)
            for minute in pc.unique(kept["minute"]).to_pylist():
                part = kept.filter(pc.equal(kept["minute"], minute))
                before = chunks.read(f"minute/{minute}")
                chunks.write(f"minute/{minute}", part if before is None else pa.concat_tables([before, part]))
        minutes_left = sorted(int(name.split("/")[1]) for name in chunks.names())
        out: list[dict[str, Any]] = []
        for minute in [each for each in minutes_left if (each + 1) * MINUTE <= step.watermark]:
            held = chunks.read(f"minute/{minute}")
            assert held is not None
            chunks.delete(f"minute/{minute}")
            rows = held.to_pylist()
            for key in sorted({row["k"] for row in rows}):
                counts = {f"of_{n or 'rows'}": sum(r["k"] == key and r["input"] == n for r in rows) for n in self.names}
                out.append({"k": key, "minute": minute, **counts})
        tardy = pa.concat_tables(late) if late else ROWS.empty_table()
        return Output(
            {RESULTS: pa.Table.from_pylist(out, self.outputs[RESULTS]), LATE: tardy},
            late=tardy.num_rows,
        )
