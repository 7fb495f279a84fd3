"""kill -9 of PostgreSQL while batches are written: each is whole or absent, and written once in the end."""

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import PostgresUnavailable
from headrace.tables import EmbeddedPostgres, ViewReader, ViewWriter
from headrace.topology import Schema
from tests.tables.rows import batch

COLUMNS = "batch INT, n INT, attempt INT"
ROWS = 3000
KEY = ("batch", "n")
ORDERED = "k INT, v INT, at INT"
KEYS = 500


def attempted(number: int, attempt: int) -> list[object]:
    rows = [{"batch": number, "n": n, "attempt": attempt} for n in range(ROWS)]
    return [batch(rows[start : start + 500], COLUMNS) for start in range(0, ROWS, 500)]


@pytest.mark.parametrize(
    "kills", [4, pytest.param(30, marks=[pytest.mark.long, pytest.mark.timeout(600)])], ids=["few", "many"]
)
def test_a_batch_is_whole_or_absent_whenever_the_server_is_killed(tmp_path: Path, kills: int) -> None:
    kill_while_writing(tmp_path, kills, (COLUMNS, KEY, ()), attempted, check)


@pytest.mark.parametrize(
    "kills", [3, pytest.param(30, marks=[pytest.mark.long, pytest.mark.timeout(600)])], ids=["few", "many"]
)
def test_the_order_holds_across_batches_whenever_the_server_is_killed(tmp_path: Path, kills: int) -> None:
    kill_while_writing(tmp_path, kills, (ORDERED, ("k",), ("at",)), disordered, check_order)


def kill_while_writing(
    folder: Path,
    kills: int,
    view: tuple[str, tuple[str, ...], tuple[str, ...]],
    rows_of: Callable[[int, int], list[Any]],
    check: Callable[[str, int, dict[int, int]], None],
) -> None:
    chance = random.Random(kills)
    server = EmbeddedPostgres(folder)
    server.start()
    columns, key, order_by = view
    writer = ViewWriter(server.dsn, "crashes", "v", Schema.of(columns), key, order_by)
    writer.prepare()
    expected: dict[int, int] = {}
    killed = replayed = number = 0
    try:
        while killed < kills:
            process = server.process
            assert process is not None
            timer = threading.Timer(chance.uniform(0.01, 0.5), process.kill)
            timer.start()
            attempt = 0
            while timer.is_alive() or attempt:
                # None where nobody knows: the server died, perhaps between its commit and its answer.
                sure = attempt == 0
                try:
                    if writer.write("q", number, {"t": {0: number + 1}}, rows_of(number, attempt)):
                        expected[number] = attempt
                    else:
                        assert not sure
                        replayed += 1
                    number, attempt = number + 1, 0
                except PostgresUnavailable:
                    timer.join()
                    server.start()
                    attempt += 1
            timer.join()
            killed += 1
            while server.process is not None and server.process == process:
                time.sleep(0.01)
            server.start()
            check(server.dsn, number, expected)
    finally:
        writer.close()
        server.stop()
    print(f"{killed} kills, {number} batches, {replayed} were there already when written again")


def check(dsn: str, batches: int, expected: dict[int, int]) -> None:
    reader = ViewReader(dsn, "crashes", "v", KEY)
    found: dict[int, list[int]] = {}
    for row in reader.rows():
        found.setdefault(row["batch"], []).append(row["attempt"])
    reader.close()
    assert sorted(found) == list(range(batches))
    for number, attempts in found.items():
        assert len(attempts) == ROWS
        assert len(set(attempts)) == 1, "rows of two attempts"
        if number in expected:
            assert attempts[0] == expected[number]


def changes_of(number: int) -> list[dict[str, Any]]:
    """The same at each attempt: rows and deletes, many of them older than what batches before have brought."""
    chance = random.Random(number)
    return [
        {
            "k": chance.randrange(KEYS),
            "v": number * KEYS + n,
            "at": number + chance.randrange(-5, 3),
            "_deleted": chance.random() < 0.4,
        }
        for n in range(KEYS)
    ]


def disordered(number: int, _: int) -> list[Any]:
    return [batch(changes_of(number), f"{ORDERED}, _deleted BOOLEAN")]


def check_order(dsn: str, batches: int, _: dict[int, int]) -> None:
    newest: dict[int, dict[str, Any]] = {}
    for row in (row for number in range(batches) for row in changes_of(number)):
        if row["at"] >= newest.get(row["k"], row)["at"]:
            newest[row["k"]] = row
    reader = ViewReader(dsn, "crashes", "v", ("k",))
    found = {row["k"]: row["v"] for row in reader.rows()}
    reader.close()
    assert found == {k: row["v"] for k, row in newest.items() if not row["_deleted"]}
