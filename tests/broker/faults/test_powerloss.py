"""The recorder and the replayer themselves: a wrong model of the disk would prove nothing."""

import random
import sqlite3
import threading
from pathlib import Path, PurePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.broker.faults.history import History, Link, Sync, SyncFailed, SyncFolder, Truncate, Unlink, Write
from tests.broker.faults.powerloss import SECTOR, Loss, image_after
from tests.broker.faults.recording import RecordingDisk, RecordingStore

LOSSES = [Loss.NONE_KEPT, Loss.PREFIX_KEPT, Loss.SUBSET_KEPT]
SEEDS = range(40)
LOG = PurePath("log")


def images(history: History, point: int | None = None) -> list[dict[PurePath, bytes | None]]:
    at = history.now() if point is None else point
    return [image_after(history, at, loss, seed).entries for loss in LOSSES for seed in SEEDS]


def started(name: str = "log") -> tuple[History, int]:
    """A history with one file whose name is synced."""
    history = History()
    file = history.link(PurePath(name), is_folder=False)
    history.add(SyncFolder(0, history.now()))
    return history, file


def test_a_synced_write_is_always_there() -> None:
    history, file = started()
    history.add(Write(file, 0, b"a" * 2000))
    history.add(Sync(file, history.now(), False))
    assert all(image[LOG] == b"a" * 2000 for image in images(history))


def test_an_unsynced_write_may_be_there_in_whole_in_part_or_not() -> None:
    history, file = started()
    history.add(Write(file, 0, b"a" * 2000))
    seen = {image[LOG] for image in images(history)}
    assert {b"", b"a" * 2000} <= seen
    assert any(content and content.strip(b"\0") != b"a" * 2000 for content in seen)
    assert any(content and content.startswith(bytes(SECTOR)) for content in seen), (
        "a hole before a sector that is there"
    )


def test_sectors_are_whole() -> None:
    history, file = started()
    history.add(Write(file, 100, bytes(range(1, 251)) * 12))
    whole = bytes(100) + bytes(range(1, 251)) * 12
    for image in images(history):
        content = image[LOG]
        assert content is not None
        for start in range(0, len(content), SECTOR):
            sector = content[start : start + SECTOR]
            assert sector in (whole[start : start + SECTOR], bytes(len(sector)))


def test_none_kept_means_exactly_the_synced_state() -> None:
    history, file = started()
    history.add(Write(file, 0, b"old"))
    history.add(Sync(file, history.now(), False))
    history.add(Write(file, 0, b"new"))
    assert image_after(history, history.now(), Loss.NONE_KEPT).entries[LOG] == b"old"
    assert image_after(history, history.now(), Loss.ALL_KEPT).entries[LOG] == b"new"


def test_a_sync_covers_only_what_had_finished_before_it_began() -> None:
    history, file = started()
    history.add(Write(file, 0, b"one"))
    began = history.now()
    history.add(Write(file, 3, b"two"))
    history.add(Sync(file, began, False))
    assert {image[LOG] for image in images(history)} >= {b"one", b"onetwo"}
    assert all(image[LOG][:3] == b"one" for image in images(history))  # type: ignore[index]


def test_no_later_sync_covers_what_a_failed_one_lost() -> None:
    history, file = started()
    history.add(Write(file, 0, b"kept"))
    history.add(Sync(file, history.now(), False))
    history.add(Write(file, 4, b"lost"))
    history.add(SyncFailed(file))
    history.add(Write(file, 8, b"late"))
    history.add(Sync(file, history.now(), True))
    assert image_after(history, history.now(), Loss.NONE_KEPT).entries[LOG] == b"kept\0\0\0\0late"
    history.add(Write(file, 4, b"lost"))
    history.add(Sync(file, history.now(), True))
    assert image_after(history, history.now(), Loss.NONE_KEPT).entries[LOG] == b"keptlostlate"


def test_a_sync_that_has_not_returned_covers_nothing() -> None:
    history, file = started()
    history.add(Write(file, 0, b"one"))
    point = history.now()
    history.add(Sync(file, point, False))
    assert b"" in {image[LOG] for image in images(history, point)}


def test_a_name_without_a_synced_folder_may_be_absent() -> None:
    history = History()
    file = history.link(LOG, is_folder=False)
    history.add(Write(file, 0, b"one"))
    history.add(Sync(file, history.now(), True))
    assert LOG not in image_after(history, history.now(), Loss.NONE_KEPT).entries
    assert {image.get(LOG) for image in images(history)} == {None, b"one"}


def test_a_synced_file_in_an_unsynced_folder_is_absent_with_it() -> None:
    history = History()
    history.link(PurePath("a"), is_folder=True)
    file = history.link(PurePath("a/b"), is_folder=False)
    history.add(Write(file, 0, b"one"))
    history.add(Sync(file, history.now(), False))
    history.add(SyncFolder(history.node(PurePath("a")), history.now()))
    assert image_after(history, history.now(), Loss.NONE_KEPT).entries == {}
    history.add(SyncFolder(0, history.now()))
    assert image_after(history, history.now(), Loss.NONE_KEPT).entries == {
        PurePath("a"): None,
        PurePath("a/b"): b"one",
    }


def test_a_removal_may_be_undone_until_its_folder_is_synced() -> None:
    history, file = started()
    history.add(Write(file, 0, b"one"))
    history.add(Sync(file, history.now(), False))
    history.unlink(LOG)
    assert image_after(history, history.now(), Loss.NONE_KEPT).entries[LOG] == b"one"
    assert {image.get(LOG) for image in images(history)} == {None, b"one"}
    history.add(SyncFolder(0, history.now()))
    assert all(LOG not in image for image in images(history))


def test_a_name_made_again_is_another_file() -> None:
    history, file = started()
    history.add(Write(file, 0, b"old"))
    history.add(Sync(file, history.now(), False))
    history.unlink(LOG)
    again = history.link(LOG, is_folder=False)
    history.add(Write(again, 0, b"n"))
    history.add(Sync(again, history.now(), False))
    history.add(SyncFolder(0, history.now()))
    assert all(image[LOG] == b"n" for image in images(history))


def test_a_cut_needs_more_than_a_data_sync() -> None:
    history, file = started()
    history.add(Write(file, 0, b"abcdef"))
    history.add(Sync(file, history.now(), False))
    history.add(Truncate(file, 2))
    history.add(Sync(file, history.now(), False))
    assert {image[LOG] for image in images(history)} == {b"ab", b"abcdef"}
    history.add(Sync(file, history.now(), True))
    assert {image[LOG] for image in images(history)} == {b"ab"}


def test_a_killed_process_leaves_everything_in_sight_and_pending() -> None:
    history, file = started()
    history.add(Write(file, 0, b"one"))
    resumed = history.until(history.now())
    assert image_after(resumed, resumed.now(), Loss.ALL_KEPT).entries[LOG] == b"one"
    assert resumed.node(LOG) == file
    assert resumed.link(PurePath("other"), is_folder=False) > file
    resumed.add(Sync(file, resumed.now(), False))
    assert image_after(resumed, resumed.now(), Loss.NONE_KEPT).entries[LOG] == b"one"
    assert image_after(history, history.now(), Loss.NONE_KEPT).entries[LOG] == b""


@given(seed=st.integers(0, 10_000), loss=st.sampled_from(list(Loss)), count=st.integers(1, 40))
def test_what_was_synced_last_is_never_older_than_its_sync(seed: int, loss: Loss, count: int) -> None:
    """Sector by sector, the image holds the synced version or a later one."""
    dice = random.Random(seed)
    history, file = started()
    versions: list[list[int]] = [[0] for _ in range(8)]
    first_allowed = [0] * 8
    for number in range(1, count + 1):
        start = dice.randrange(8)
        length = dice.randint(1, 8 - start)
        history.add(Write(file, start * SECTOR, bytes([number]) * (length * SECTOR)))
        for sector in range(start, start + length):
            versions[sector].append(number)
        if dice.random() < 0.3:
            history.add(Sync(file, history.now(), False))
            first_allowed = [len(each) - 1 for each in versions]
    content = image_after(history, history.now(), loss, seed).entries[LOG]
    assert content is not None
    content = content.ljust(8 * SECTOR, b"\0")
    for sector in range(8):
        piece = content[sector * SECTOR : (sector + 1) * SECTOR]
        assert len(set(piece)) == 1
        assert piece[0] in versions[sector][first_allowed[sector] :]


def test_the_recording_disk_does_what_it_logs(tmp_path: Path) -> None:
    history = History()
    disk = RecordingDisk(tmp_path, history)
    for folder in disk.make_folders(tmp_path / "data" / "topic-0"):
        disk.sync_folder(folder)
    file = disk.create(tmp_path / "data" / "topic-0" / "0.log")
    disk.write(file, b"hello", 0)
    disk.write(file, memoryview(b" world"), 5)
    disk.truncate(file, 8)
    disk.sync_all(file)
    other = disk.create(tmp_path / "data" / "gone")
    disk.close(other)
    disk.remove(tmp_path / "data" / "gone")
    disk.sync_folder(tmp_path / "data" / "topic-0")
    disk.close(file)
    assert disk.open(tmp_path / "data" / "topic-0" / "0.log")
    folders = [Link, Link, SyncFolder, SyncFolder]
    changes = [Link, Write, Write, Truncate, Sync, Link, Unlink, SyncFolder]
    assert [type(event) for event in history.events] == folders + changes
    for loss in Loss:
        image = image_after(history, history.now(), loss)
        assert image.entries[PurePath("data/topic-0/0.log")] == b"hello wo"
    again = tmp_path / "again"
    image.write_to(again)
    assert (again / "data/topic-0/0.log").read_bytes() == b"hello wo"
    disk.remove_tree(tmp_path / "data")
    assert image_after(history, history.now(), Loss.ALL_KEPT).entries == {}
    assert PurePath("data/topic-0/0.log") in image_after(history, history.now(), Loss.NONE_KEPT).entries


def test_a_failed_operation_is_not_logged(tmp_path: Path) -> None:
    history = History()
    disk = RecordingDisk(tmp_path, history)
    disk.make_folder(tmp_path / "data")
    with pytest.raises(FileExistsError):
        disk.make_folder(tmp_path / "data")
    with pytest.raises(FileNotFoundError):
        disk.remove(tmp_path / "data" / "nothing")
    assert history.now() == 1


def test_syncs_of_other_threads_do_not_cover_later_writes(tmp_path: Path) -> None:
    history = History()
    disk = RecordingDisk(tmp_path, history, sync_seconds=0.1)
    file = disk.create(tmp_path / "log")
    disk.sync_folder(tmp_path)
    disk.write(file, b"before", 0)
    thread = threading.Thread(target=disk.sync, args=[file])
    began = history.now()
    thread.start()
    disk.write(file, b"after", 6)
    thread.join()
    [sync] = [event for event in history.events if isinstance(event, Sync)]
    assert sync.began >= began
    kept = image_after(history, history.now(), Loss.NONE_KEPT).entries[LOG]
    assert kept == (b"before" if sync.began == began else b"beforeafter")


def test_commits_of_the_store_are_whole_or_absent(tmp_path: Path) -> None:
    history = History()
    disk = RecordingDisk(tmp_path, history)
    store = RecordingStore(tmp_path / "meta.db", disk=disk)
    store.load(lambda connection: connection.execute("CREATE TABLE t (x INTEGER)"))
    before = history.now()
    store.load(lambda connection: connection.execute("INSERT INTO t VALUES (7)"))
    store.close()

    def rows(point: int) -> list[tuple[int]]:
        folder = tmp_path / f"at-{point}"
        image_after(history, point, Loss.NONE_KEPT).write_to(folder)
        connection = sqlite3.connect(folder / "meta.db")
        try:
            return connection.execute("SELECT x FROM t").fetchall()
        finally:
            connection.close()

    assert rows(before) == []
    assert rows(history.now()) == [(7,)]
