"""The history that strace yields is the true one: replayed whole, it gives the very files of the process."""

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path, PurePath

import pytest

from tests.broker.faults.history import Note
from tests.broker.faults.powerloss import Loss, image_after
from tests.broker.faults.strace import Restarted, parse, traced

PROGRAM = """
import os, pickle, sqlite3, sys, threading
root, marks = sys.argv[1], os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
mark = lambda fact: os.write(marks, pickle.dumps(fact))
os.mkdir(root + "/topic")
file = os.open(root + "/topic/log", os.O_RDWR | os.O_CREAT)
os.pwrite(file, b'a "quoted"\\n' * 300, 0)
mark("written")
os.fdatasync(file)
mark("synced")
os.pwritev(file, [b"two", b"parts"], 10)
os.ftruncate(file, 3000)
os.fsync(file)
folder = os.open(root + "/topic", os.O_RDONLY)
os.fsync(folder)
folder = os.open(root, os.O_RDONLY)
os.fsync(folder)
mark("named")
with open(root + "/plain", "w") as plain:
    plain.write("one")
    plain.flush()
    plain.write("two")
os.unlink(root + "/plain")
database = sqlite3.connect(root + "/meta.db", isolation_level=None)
database.execute("PRAGMA journal_mode=WAL")
database.execute("PRAGMA synchronous=" + sys.argv[3])
database.execute("CREATE TABLE t (x)")
os.fsync(folder)
for number in range(300):
    database.execute("INSERT INTO t VALUES (?)", [number])
    mark(number)
    if number == 150:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
threads = [threading.Thread(target=os.fdatasync, args=[file]) for _ in range(4)]
for thread in threads:
    thread.start()
os.pwrite(file, b"late", 0)
for thread in threads:
    thread.join()
mark("end")
if len(sys.argv) > 4:
    os.kill(os.getpid(), 9)
"""


def record(tmp_path: Path, *arguments: str) -> tuple[Path, Path, Path]:
    root, markers, log = tmp_path / "root", tmp_path / "markers", tmp_path / "strace.log"
    root.mkdir()
    program = [sys.executable, "-c", PROGRAM, str(root), str(markers), *arguments]
    subprocess.run(traced(log, program), timeout=60, check=False)
    return log, root, markers


def contents(folder: Path) -> dict[PurePath, bytes | None]:
    return {
        path.relative_to(folder): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if not path.name.endswith("-shm")
    }


def rows(folder: Path) -> list[int]:
    database = sqlite3.connect(folder / "meta.db")
    try:
        return [row[0] for row in database.execute("SELECT x FROM t")]
    except sqlite3.OperationalError:  # the table itself was lost
        return []
    finally:
        database.close()


def test_the_whole_history_gives_the_very_files(tmp_path: Path) -> None:
    log, root, markers = record(tmp_path, "FULL", "killed")
    history = parse(log, root, markers)
    assert image_after(history, history.now(), Loss.ALL_KEPT).entries == contents(root)
    notes = [event.fact for event in history.events if isinstance(event, Note)]
    assert notes == ["written", "synced", "named", *range(300), "end"]


def test_markers_stand_where_they_were_written(tmp_path: Path) -> None:
    log, root, markers = record(tmp_path, "FULL")
    history = parse(log, root, markers)
    at = {event.fact: index for index, event in enumerate(history.events) if isinstance(event, Note)}
    whole = b'a "quoted"\n' * 300
    name = PurePath("topic/log")
    assert image_after(history, at["written"], Loss.ALL_KEPT).entries[name] == whole
    assert image_after(history, at["synced"], Loss.NONE_KEPT).entries == {}
    changed = (whole[:10] + b"twoparts" + whole[18:])[:3000]
    assert image_after(history, at["named"], Loss.NONE_KEPT).entries[name] == changed


@pytest.mark.parametrize("synchronous", ["FULL", "NORMAL"])
def test_sqlite_keeps_what_it_committed_only_when_told_to(tmp_path: Path, synchronous: str) -> None:
    log, root, markers = record(tmp_path, synchronous)
    history = parse(log, root, markers)
    at = {event.fact: index for index, event in enumerate(history.events) if isinstance(event, Note)}
    lost = 0
    for number in range(0, 300, 20):
        for loss in (Loss.NONE_KEPT, Loss.PREFIX_KEPT, Loss.SUBSET_KEPT):
            folder = tmp_path / f"{number}-{loss.value}"
            image_after(history, at[number] + 1, loss, number).write_to(folder)
            found = rows(folder)
            assert found == list(range(len(found)))
            lost += len(found) < number + 1
    assert (lost == 0) == (synchronous == "FULL")


def test_what_a_killed_process_left_is_adopted(tmp_path: Path) -> None:
    log, root, markers = record(tmp_path, "FULL", "killed")
    snapshot = tmp_path / "snapshot"
    shutil.copytree(root, snapshot)
    (snapshot / "topic/log").write_bytes((root / "topic/log").read_bytes() + b"more")
    (snapshot / "topic/new").write_bytes(b"new")
    code = "import os, pickle, sys; from tests.broker.faults.strace import *; "
    code += "os.write(os.open(sys.argv[1], os.O_WRONLY), encode_marker(Restarted(Path(sys.argv[2]))))"
    second = tmp_path / "second.log"
    subprocess.run(traced(second, [sys.executable, "-c", code, str(markers), str(snapshot)]), timeout=60, check=True)
    with log.open("ab") as both:
        both.write(second.read_bytes())
    history = parse(log, root, markers)
    assert isinstance(history.events[-1], Note)
    assert history.events[-1].fact == Restarted(snapshot)
    assert image_after(history, history.now(), Loss.ALL_KEPT).entries == contents(snapshot)
    kept = image_after(history, history.now(), Loss.NONE_KEPT).entries
    assert not kept[PurePath("topic/log")].endswith(b"more")  # type: ignore[union-attr]
    assert PurePath("topic/new") not in kept
