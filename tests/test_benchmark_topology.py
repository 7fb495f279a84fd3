"""The pieces of the topology's benchmark that need no Spark: what they read of /proc and checkpoints, percentiles."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from benchmarks.engine.topology.batches import Batches, read_offsets
from benchmarks.engine.topology.payments import DUPLICATE, LATE, ORDINARY, Payments
from benchmarks.engine.topology.processes import (
    PARTS,
    TICKS,
    Cpu,
    parse_code_cache,
    parse_heap_info,
    parse_stat,
    part_of_thread,
)
from benchmarks.engine.topology.scenario import in_turn
from benchmarks.engine.topology.traffic import Sent, encoded, percentile, view_delays

HOME = Path("/data/home")


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("C2 CompilerThre", "JIT"),
        ("C1 CompilerThre", "JIT"),
        ("C2 Comp..hread0", "JIT"),
        ("stream executio", "planning"),
        ("stream ..3f1c2]", "planning"),
        ("Executor task l", "tasks"),
        ("Executor task i", "tasks"),
        ("Executo..TID 12", "tasks"),
        ("Thread-4", "Py4J calls"),
        ("kafka-admin-cli", "Kafka admin clients"),
        ("G1 Young RemSet", "GC"),
        ("GC Thread#1", "GC"),
        ("Executor", "Java, other"),
        ("executor-heartb", "Java, other"),
        ("java", "Java, other"),
        ("", "Java, other"),
    ],
)
def test_a_thread_is_known_by_what_linux_keeps_of_its_name(name: str, part: str) -> None:
    assert part_of_thread(name) == part


def test_a_name_with_brackets_and_spaces_does_not_shift_the_figures() -> None:
    stat = parse_stat(line(7, "a) S (b", parent=3, own=(150, 50), children=(20, 10), started=99))
    assert (stat.name, stat.state, stat.parent, stat.started) == ("a) S (b", "S", 3, 99)
    assert (stat.own, stat.children) == (200 / TICKS, 30 / TICKS)


def test_cpu_is_told_by_part_and_none_is_lost(tmp_path: Path) -> None:
    second = TICKS
    process(tmp_path, 10, "python", 1, own=1 * second, command=f"python\0-m\0headrace\0run\0--home\0{HOME}\0")
    process(tmp_path, 11, "java", 10, own=10 * second, children=second, command="java\0org.apache.spark\0")
    process(tmp_path, 12, "python", 11, own=2 * second, command="python\0-m\0pyspark.daemon\0")
    process(tmp_path, 13, "python", 12, own=3 * second, command="python\0-m\0pyspark.daemon\0")
    process(tmp_path, 14, "python", 1, own=4 * second, command=f"python\0-m\0headrace\0broker\0--data\0{HOME}/broker\0")
    process(tmp_path, 15, "postgres", 1, own=second, command=f"postgres\0-D\0{HOME}/postgres\0")
    process(tmp_path, 16, "postgres", 15, own=second, command="postgres: writer\0")
    process(tmp_path, 17, "python", 1, own=50 * second, command="python\0of\0somebody\0else\0")
    thread(tmp_path, 11, 21, "C2 CompilerThre", 4 * second)
    thread(tmp_path, 11, 22, "stream executio", 2 * second)
    thread(tmp_path, 11, 23, "state server", second)
    cpu = Cpu(10, HOME, proc=tmp_path)
    first = cpu.sample()
    told = {part: seconds for part, seconds in first.items() if seconds}
    assert told == {
        "driver's Python": 1,
        "JIT": 4,
        "planning": 2,
        "Java, other": 4,
        "forked by Java": 1,
        "Python workers": 5,
        "broker": 4,
        "PostgreSQL": 2,
    }
    assert set(first) == set(PARTS)
    assert cpu.members["Python workers"] == [12, 13]

    # A worker ends: what it used is its parent's now. A thread ends, another comes, and the sum is still the process's.
    for path in ("13/stat", "13/cmdline", "11/task/22/stat"):
        (tmp_path / path).unlink()
    process(tmp_path, 12, "python", 11, own=2 * second, children=4 * second, command="python\0-m\0pyspark.daemon\0")
    process(tmp_path, 11, "java", 10, own=14 * second, children=second, command="java\0org.apache.spark\0")
    thread(tmp_path, 11, 24, "stream executio", second)
    second_look = cpu.sample()
    assert {part: second_look[part] - first[part] for part in PARTS if second_look[part] != first[part]} == {
        "planning": 1,
        "Java, other": 3,
        "Python workers": 1,
    }


def test_java_is_asked_for_its_memory() -> None:
    heap = """4711:
 garbage-first heap   total 524288K, used 204800K [0x0000000080000000, 0x0000000100000000)
  region size 1024K, 31 young (31744K), 7 survivors (7168K)
 Metaspace       used 153600K, committed 154880K, reserved 1245184K
  class space    used 17000K, committed 17500K, reserved 1048576K
"""
    assert parse_heap_info(heap) == (200, 150)
    cache = """CodeHeap 'non-profiled nmethods': size=120032Kb used=10240Kb max_used=18000Kb free=102344Kb
 bounds [0x1, 0x2, 0x3]
CodeHeap 'profiled nmethods': size=120028Kb used=20480Kb max_used=40000Kb free=80000Kb
CodeHeap 'non-nmethods': size=5700Kb used=1024Kb max_used=1800Kb free=4000Kb
 total_blobs=20000 nmethods=19000 adapters=900
"""
    assert parse_code_cache(cache) == 31
    with pytest.raises(ValueError, match="nothing that is known"):
        parse_heap_info("4711:\nno such process\n")


def test_batches_are_read_of_checkpoints(tmp_path: Path) -> None:
    spark = tmp_path / "checkpoints" / "fraud" / "known" / "spark"
    batches = Batches(tmp_path, ["known"])
    assert not batches.is_ready()
    finish(spark, 0, '{"accepted":{"0":0,"1":5}}', '{"accepted.markers":{"0":1}}')
    assert batches.is_ready()
    finish(spark, 1, '{"accepted":{"0":7,"1":5}}', '{"accepted.markers":{"0":1}}')
    finish(spark, 2, '{"accepted":{"0":7,"1":5}}', '{"accepted.markers":{"0":9}}')
    (spark / "commits" / ".3.tmp").touch()
    batches.look()
    batches.look()
    assert [(batch.number, batch.rows) for batch in batches.seen] == [(0, 5), (1, 7), (2, 0)]
    assert batches.reached("known", "accepted") == 12
    assert len(batches.between(0, batches.seen[-1].ended + 1)) == 3


def test_offsets_of_sources_without_any_are_left_out() -> None:
    assert read_offsets('v1\n{"batchWatermarkMs":0}\n-\n7\n{"a":{"0":3}}\n{"a":{"0":2}}') == {"a": {"0": 3}}


def test_percentiles_are_values_that_were_measured() -> None:
    hundred = [float(number) for number in range(1, 101)]
    assert [percentile(hundred, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1, 50, 99, 100]
    assert percentile([3.0], 0.99) == 3
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_a_view_that_counts_has_the_first_that_were_sent() -> None:
    kinds = (ORDINARY, LATE, ORDINARY, ORDINARY)
    sent = [Sent(f"p{number}", kind, at=float(number)) for number, kind in enumerate(kinds)]
    assert view_delays(sent, [(1.5, 0), (2.5, 1), (5.0, 2)], begin=0, end=9, now=10) == [2.5, 3.0, 7.0]
    assert view_delays(sent, [(2.5, 1), (5.0, 3)], begin=2, end=3, now=10) == [3.0]


def test_the_same_payments_are_made_every_time() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    first, second = Payments(), Payments()
    assert [first.make(now) for _ in range(200)] == [second.make(now) for _ in range(200)]
    row = Payments().make(now, {ORDINARY: 1}).row
    assert row is not None
    assert encoded(row).endswith(b'"at":"2026-01-01T00:00:00.000000Z"}')
    assert DUPLICATE in {first.make(now).kind for _ in range(200)}


def test_the_ways_take_turns() -> None:
    asked: list[str] = []

    def taken(way: str, name: str) -> dict[tuple[str, str], float]:
        asked.append(name)
        return {("case", way): float(len(asked))}

    found = in_turn(["a b", "c"], 2, taken)
    assert asked == ["a-b-0", "c-0", "c-1", "a-b-1"]
    assert found == {"a b": [{("case", "a b"): 1}, {("case", "a b"): 4}], "c": [{("case", "c"): 2}, {("case", "c"): 3}]}


def line(
    pid: int, name: str, *, parent: int = 1, own: tuple[int, int], children: tuple[int, int] = (0, 0), started: int = 5
) -> str:
    before = "0 0 0 -1 4194304 100 200 3 4"
    times = " ".join(map(str, (*own, *children)))
    return f"{pid} ({name}) S {parent} {before} {times} 20 0 9 0 {started} 1000 200 18446744073709551615"


def process(proc: Path, pid: int, name: str, parent: int, *, own: int, command: str, children: int = 0) -> None:
    folder = proc / str(pid)
    (folder / "task").mkdir(parents=True, exist_ok=True)
    (folder / "stat").write_text(line(pid, name, parent=parent, own=(own, 0), children=(0, children)))
    (folder / "cmdline").write_bytes(command.encode())


def thread(proc: Path, pid: int, tid: int, name: str, used: int) -> None:
    folder = proc / str(pid) / "task" / str(tid)
    folder.mkdir(parents=True)
    (folder / "stat").write_text(line(tid, name, own=(used, 0), started=tid))


def finish(spark: Path, number: int, *sources: str) -> None:
    for folder in ("offsets", "commits"):
        (spark / folder).mkdir(parents=True, exist_ok=True)
    (spark / "offsets" / str(number)).write_text("\n".join(["v1", '{"batchWatermarkMs":0}', *sources]))
    (spark / "commits" / str(number)).write_text("v1\n{}")
