"""A log whose end was torn: cut, zero-filled or scrambled at every byte, what is whole stays and nothing else."""

import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.broker.storage.checkpoint import Saved
from headrace.broker.storage.epochs import Epochs
from headrace.broker.storage.files import Disk
from headrace.broker.storage.producers import ProducerStates
from headrace.broker.storage.recovery import Recovered, recover
from headrace.broker.storage.segment import Damage
from tests.broker.faults.batches import Batch, decode, encode

SYNCED_BATCHES = 3
PRODUCER = (7, 0)


def placed(batch: bytes, offset: int, epoch: int = 0) -> bytes:
    """As the broker writes it: both fields lie outside the checksum."""
    return struct.pack(">q", offset) + batch[8:12] + struct.pack(">i", epoch) + batch[16:]


def some_batches() -> list[bytes]:
    batches = []
    offset = 0
    for number in range(9):
        values = [f"{number}-{each}".encode() * (1 + 7 * (number % 3)) for each in range(1 + number % 3)]
        batches.append(placed(encode(values, *PRODUCER, offset, timestamp=1), offset))
        offset += len(values)
    return batches


BATCHES = some_batches()
STARTS = [sum(map(len, BATCHES[:number])) for number in range(len(BATCHES) + 1)]
WHOLE = b"".join(BATCHES)
OFFSETS = [next(decode(batch)).base_offset for batch in BATCHES] + [next(decode(BATCHES[-1])).next_offset]
SYNCED = STARTS[SYNCED_BATCHES]


def saved_at(number: int, segment: int = 0, byte: int | None = None) -> Saved:
    """The checkpoint after that many batches."""
    states = ProducerStates()
    return Saved(0, segment, STARTS[number] if byte is None else byte, OFFSETS[number], states.encode(), {}, [])


def recovered(folder: Path, saved: Saved | None) -> Recovered:
    return recover("tail", folder, saved, Epochs(), Disk(durable=False), lambda: 0)


def log_file(folder: Path, base: int = 0) -> Path:
    return folder / f"{base:020}.log"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def whole_batches(content: bytes) -> int:
    """How many batches stand untouched at the beginning."""
    return next((n for n, start in enumerate(STARTS[1:]) if content[:start] != WHOLE[:start]), len(BATCHES))


def expect_cut(folder: Path, content: bytes, saved: Saved | None) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    path = log_file(folder)
    path.write_bytes(content)
    kept = whole_batches(content)
    found = recovered(folder, saved)
    assert found.log_end == OFFSETS[kept]
    assert path.read_bytes() == WHOLE[: STARTS[kept]]
    assert found.segments[0].size == STARTS[kept]
    asides = [entry for entry in folder.iterdir() if entry != path]
    assert [entry.read_bytes() for entry in asides] == ([content[STARTS[kept] :]] if content[STARTS[kept] :] else [])
    first = saved.offset if saved else 0
    batches: list[Batch] = list(decode(WHOLE[: STARTS[kept]]))
    walked = [batch.base_offset for batch in batches if batch.base_offset >= first]
    entry = found.producers.entries.get(PRODUCER[0])
    assert [written.base_offset for written in entry.batches] if entry else walked[-5:] == []
    again = recovered(folder, saved)
    assert again.log_end == found.log_end, "recovering twice changes nothing"


def damages() -> dict[str, Callable[[int], bytes]]:
    dice = random.Random(3)

    def one_bit(at: int) -> bytes:
        return WHOLE[:at] + bytes([WHOLE[at] ^ (1 << dice.randrange(8))]) + WHOLE[at + 1 :]

    return {
        "cut": lambda at: WHOLE[:at],
        "zeros": lambda at: WHOLE[:at] + bytes(len(WHOLE) - at),
        "random": lambda at: WHOLE[:at] + dice.randbytes(len(WHOLE) - at),
        "one bit": one_bit,
        "one byte inserted": lambda at: WHOLE[:at] + b"\x05" + WHOLE[at:],
        "one byte missing": lambda at: WHOLE[:at] + WHOLE[at + 1 :],
        "a sector of zeros": lambda at: WHOLE[:at] + bytes(min(512, len(WHOLE) - at)) + WHOLE[at + 512 :],
        "longer by zeros": lambda at: WHOLE + bytes(at - SYNCED + 1),
        "longer by an old batch": lambda at: WHOLE + WHOLE[: at - SYNCED + 1],
    }


@pytest.mark.parametrize("kind", damages())
@pytest.mark.parametrize("step", [31, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("saved", [None, saved_at(SYNCED_BATCHES)], ids=["no checkpoint", "checkpoint"])
def test_the_tail_is_cut_at_the_first_bad_batch(folder: Path, kind: str, saved: Saved | None, step: int) -> None:
    damage = damages()[kind]
    first = SYNCED if saved or kind.startswith("longer") else 0
    for at in range(first, len(WHOLE), step):
        expect_cut(folder / "log", damage(at), saved)


def test_fields_outside_the_checksum_are_checked_as_well(folder: Path) -> None:
    """Base offset, length, leader epoch and magic of a later batch, with a checksum that holds."""
    start = STARTS[5]
    for at, width in ((0, 8), (8, 4), (12, 4), (16, 1)):
        for position in range(start + at, start + at + width):
            for bit in range(8):
                content = bytearray(WHOLE)
                content[position] ^= 1 << bit
                expect_cut(folder / "log", bytes(content), saved_at(SYNCED_BATCHES))


def test_a_batch_of_another_place_is_no_continuation(folder: Path) -> None:
    repeated = WHOLE + BATCHES[-1]
    expect_cut(folder / "log", repeated, saved_at(SYNCED_BATCHES))
    skipped = WHOLE[: STARTS[6]] + WHOLE[STARTS[7] :]
    expect_cut(folder / "log", skipped, saved_at(SYNCED_BATCHES))


def test_a_file_shorter_than_its_synced_point_is_damage(folder: Path) -> None:
    for size in range(0, SYNCED, 5):
        path = log_file(folder)
        path.write_bytes(WHOLE[:size])
        with pytest.raises(Damage):
            recovered(folder, saved_at(SYNCED_BATCHES))
        assert path.read_bytes() == WHOLE[:size], "damage is left as it was found"


def test_a_missing_file_of_synced_bytes_is_damage(folder: Path) -> None:
    with pytest.raises(Damage):
        recovered(folder, saved_at(SYNCED_BATCHES))


@pytest.mark.parametrize("kind", ["cut", "zeros", "random", "one bit"])
def test_a_tear_takes_the_later_segments_with_it(folder: Path, kind: str) -> None:
    """What follows a tear cannot be read in order, so it is kept aside, never served."""
    second = OFFSETS[6]
    dice = random.Random(5)
    for at in range(SYNCED, STARTS[6], 11):
        log = folder / "log"
        shutil.rmtree(log, ignore_errors=True)
        log.mkdir()
        content = damages()[kind](at)[: STARTS[6]]
        log_file(log).write_bytes(content)
        rest = WHOLE[STARTS[6] :][: dice.choice([0, 10, len(WHOLE)])]
        log_file(log, second).write_bytes(rest)
        kept = min(whole_batches(content), 6)
        found = recovered(log, saved_at(SYNCED_BATCHES))
        assert found.log_end == OFFSETS[kept]
        if kept < 6:
            assert [segment.base_offset for segment in found.segments] == [0]
            assert not log_file(log, second).exists()
            aside = b"".join(sorted(path.read_bytes() for path in log.iterdir() if path.suffix != ".log"))
            assert len(aside) == len(content) - STARTS[kept] + len(rest)


def test_a_missing_segment_in_the_middle_ends_the_log_there(folder: Path) -> None:
    log_file(folder).write_bytes(WHOLE[: STARTS[4]])
    log_file(folder, OFFSETS[6]).write_bytes(WHOLE[STARTS[6] :])
    found = recovered(folder, saved_at(SYNCED_BATCHES))
    assert found.log_end == OFFSETS[4]
    assert not log_file(folder, OFFSETS[6]).exists()
