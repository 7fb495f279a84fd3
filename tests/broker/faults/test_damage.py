"""Promise 2: damage before the synced point takes that partition, and only that one, offline; a torn tail is cut."""

import logging
import random
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.errors import ErrorCode
from headrace.broker.storage import reading
from tests.broker.faults.batches import encode
from tests.broker.faults.client import LATEST, Client, Refused
from tests.broker.faults.harness import DATA, abandoned, serving
from tests.broker.faults.lives import scratch

VALUES = {offset: f"value {offset} ".encode() * 9 for offset in range(12)}
SEGMENT_BYTES = 700


@pytest.fixture(scope="module", params=["clean", "killed"])
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two partitions of several segments each, checkpointed to their very end."""
    folder: Path = tmp_path_factory.mktemp("stored")
    run = serving if request.param == "clean" else abandoned
    with run(folder) as running, Client(running.address) as client:
        client.create_topic("t", 2, {"segment.bytes": str(SEGMENT_BYTES)})
        for value in VALUES.values():
            client.produce("t", 0, encode([value]))
            client.produce("t", 1, encode([value]))
        running.wait(running.broker.logs._checkpoint())
        running.wait(_store_settled(running.broker))
    return folder


async def _store_settled(broker: object) -> None:
    await broker.store.write(lambda connection: None)  # type: ignore[attr-defined]


def segments(folder: Path, partition: int = 0) -> list[Path]:
    return sorted((folder / DATA / "topics" / "t").glob(f"*/{partition}/*.log"))


def expect_offline(folder: Path) -> None:
    """Somewhere between the start and the end of a read the damage is found; nothing wrong is ever handed out."""
    before = {path: path.read_bytes() for path in segments(folder)}
    with abandoned(folder) as running, Client(running.address) as client:
        with pytest.raises(Refused) as refused:
            client.read("t", 0, start=0)
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        with pytest.raises(Refused) as refused:
            client.produce("t", 0, encode([b"more"]))
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert client.read("t", 1).records == VALUES
        assert client.produce("t", 1, encode([b"goes on"])) == len(VALUES)
    assert {path: path.read_bytes() for path in segments(folder)} == before, "damage must be left as it was found"


def check_flips(stored: Path, step: int) -> None:
    sizes = [path.stat().st_size for path in segments(stored)]
    assert len(sizes) > 2
    dice = random.Random(1)
    positions = [(number, byte) for number, size in enumerate(sizes) for byte in range(size)]
    for number, byte in positions[dice.randrange(step) :: step]:
        with scratch() as folder:
            shutil.copytree(stored / DATA, folder / DATA)
            path = segments(folder)[number]
            content = bytearray(path.read_bytes())
            content[byte] ^= 1 << dice.randrange(8)
            path.write_bytes(content)
            expect_offline(folder)


def test_a_changed_bit_before_the_synced_point(stored: Path) -> None:
    check_flips(stored, 97)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_changed_bit_at_every_few_bytes_before_the_synced_point(stored: Path) -> None:
    check_flips(stored, 3)


@pytest.mark.parametrize("number", [0, 1, -1])
@pytest.mark.parametrize("left", [0, 1, 60, 61, 100])
def test_a_segment_cut_before_the_synced_point(stored: Path, number: int, left: int) -> None:
    with scratch() as folder:
        shutil.copytree(stored / DATA, folder / DATA)
        path = segments(folder)[number]
        path.write_bytes(path.read_bytes()[:left])
        expect_offline(folder)


@pytest.mark.parametrize("number", [0, 1, -1])
def test_a_missing_segment(stored: Path, number: int) -> None:
    with scratch() as folder:
        shutil.copytree(stored / DATA, folder / DATA)
        segments(folder)[number].unlink()
        expect_offline(folder)


def test_a_missing_folder(stored: Path) -> None:
    with scratch() as folder:
        shutil.copytree(stored / DATA, folder / DATA)
        shutil.rmtree(segments(folder)[0].parent)
        expect_offline(folder)


def test_zeros_in_place_of_a_segment(stored: Path) -> None:
    for number in (0, -1):
        with scratch() as folder:
            shutil.copytree(stored / DATA, folder / DATA)
            path = segments(folder)[number]
            path.write_bytes(bytes(path.stat().st_size))
            expect_offline(folder)


@pytest.mark.parametrize(
    "tail",
    [b"\0" * 100, b"garbage", b"\0" * 5000, encode([b"of another place"]), encode([b"torn"])[:40]],
    ids=["zeros", "garbage", "many zeros", "of another place", "torn"],
)
def test_a_tail_after_the_synced_point_is_cut_kept_and_told(
    stored: Path, tail: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with scratch() as folder:
        shutil.copytree(stored / DATA, folder / DATA)
        path = segments(folder)[-1]
        whole = path.read_bytes()
        path.write_bytes(whole + tail)
        with caplog.at_level(logging.WARNING), abandoned(folder) as running, Client(running.address) as client:
            assert client.offset("t", 0, LATEST) == len(VALUES)
            assert client.read("t", 0).records == VALUES
            assert path.read_bytes() == whole
            [aside] = [found for found in path.parent.iterdir() if found.suffix != ".log"]
            assert aside.read_bytes() == tail
            assert aside.name in caplog.text
            assert client.produce("t", 0, encode([b"next"])) == len(VALUES)


def test_after_damage_the_other_topics_are_served_and_the_topic_can_be_deleted(stored: Path) -> None:
    with scratch() as folder:
        shutil.copytree(stored / DATA, folder / DATA)
        segments(folder)[0].unlink()
        with serving(folder) as running, Client(running.address) as client:
            client.create_topic("u", 1)
            assert client.produce("u", 0, encode([b"one"])) == 0
            client.delete_topic("t")
            client.create_topic("t", 1)
            assert client.produce("t", 0, encode([b"new"])) == 0
        with serving(folder) as running, Client(running.address) as client:
            assert client.read("t", 0).records == {0: b"new"}
            assert client.read("u", 0).records == {0: b"one"}


@pytest.mark.parametrize("reader", ["fetch", "by time"])
def test_a_segment_deleted_while_it_is_first_read_is_no_damage(
    stored: Path, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check of what an earlier run left takes a while, and retention does not wait for it."""
    begun, go = threading.Event(), threading.Event()
    walk = reading._check

    def walk_when_told(*arguments: Any) -> Any:
        begun.set()
        assert go.wait(30)
        return walk(*arguments)

    monkeypatch.setattr(reading, "_check", walk_when_told)
    with scratch() as folder:
        shutil.copytree(stored / DATA, folder / DATA)
        with abandoned(folder) as running, Client(running.address) as client, Client(running.address) as other:
            answers: list[object] = []

            def read() -> None:
                try:
                    answers.append(client.fetch("t", 0, 0) if reader == "fetch" else client.offset("t", 0, 1))
                except Refused as refused:
                    answers.append(refused.code)

            thread = threading.Thread(target=read)
            thread.start()
            assert begun.wait(30)
            assert other.delete_records("t", 0, len(VALUES) - 1) == len(VALUES) - 1
            go.set()
            thread.join()
            last = len(VALUES) - 1
            assert answers == [ErrorCode.OFFSET_OUT_OF_RANGE if reader == "fetch" else last]
            assert client.read("t", 0).records[last] == VALUES[last]
            assert client.produce("t", 0, encode([b"goes on"])) == len(VALUES)
