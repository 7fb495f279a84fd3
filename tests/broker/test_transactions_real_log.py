"""The end of a transaction on the real log: whenever the broker dies, the next one finishes it or has it open."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.broker import Broker
from headrace.broker.groups.offsets import OffsetEntry
from headrace.broker.storage.batch import build, parse_header
from headrace.broker.storage.partition import Partition
from headrace.broker.transactions.state import Producer, State

MINUTE = 60_000
TRANSACTIONAL = 0x10
RECORD = b"\x0e\x00\x00\x00\x01\x02x\x00"
KEYS = [("t", 0), ("t", 1)]


def _partitions(broker: Broker) -> list[Partition]:
    found = [broker.topics.partition(*key) for key in KEYS]
    return [partition for partition in found if partition is not None]


def _append(partition: Partition, producer: Producer, sequence: int) -> None:
    batch = build(
        RECORD,
        attributes=TRANSACTIONAL,
        count=1,
        base_timestamp=1,
        max_timestamp=1,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
    )
    assert partition.append(memoryview(batch), parse_header(batch)) is None


class Camera:
    """Takes a picture of the data folder whenever something is about to become durable, and once it is."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self._broker = broker
        self._folder = folder
        self.pictures: list[Path] = []
        broker.store.write = self._watched(broker.store.write)  # type: ignore[method-assign]
        for partition in _partitions(broker):
            partition.append_marker = self._watched(partition.append_marker)  # type: ignore[method-assign]

    def _watched(self, act: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*given: object) -> Any:
            self.take()
            done = act(*given)
            done.add_done_callback(lambda _: self.take())
            return done

        return watched

    def take(self) -> None:
        picture = self._folder / f"picture-{len(self.pictures)}"
        shutil.copytree(self._broker.data, picture, ignore=shutil.ignore_patterns("lock"))
        self.pictures.append(picture)


async def _photographed(folder: Path, act: Callable[[Broker, Producer], Any]) -> list[Path]:
    broker = Broker(folder / "data", durability="os")
    await broker.start()
    await broker.topics.create("t", 2)
    transactions = broker.transactions
    producer = await transactions.init_producer_id("x", MINUTE)
    await transactions.add_partitions("x", producer, KEYS)
    await transactions.add_offsets("x", producer, "g")
    await transactions.commit_offsets("x", producer, "g", "", -1, None, [OffsetEntry("t", 0, 7)])
    for partition in _partitions(broker):
        _append(partition, producer, 0)
        await partition.synced()
    camera = Camera(broker, folder)
    await act(broker, producer)
    camera.take()
    pictures = list(camera.pictures)
    await broker.stop()
    return pictures


async def _outcome(picture: Path) -> str:
    """What a broker makes of the folder; it must be the same wherever one looks."""
    broker = Broker(picture, durability="os")
    await broker.start()
    try:
        transaction = broker.transactions.get("x")
        assert transaction is not None
        committed = broker.offsets.fetch("g", "t", 0)
        for partition in _partitions(broker):
            assert partition.high_watermark == partition.log_end
            still_open = transaction.state is State.ONGOING
            assert partition.last_stable_offset == (0 if still_open else partition.log_end)
            aborted = partition.aborted_between(0, partition.log_end)
            ended_badly = transaction.state is not State.ONGOING and committed is None
            assert [entry.first_offset for entry in aborted] == ([0] if ended_badly else [])
        assert broker.offsets.pending("g", "t", 0) == (transaction.state is State.ONGOING)
        if transaction.state is State.ONGOING:
            assert committed is None
            await broker.transactions.end("x", transaction.producer, True)
            assert all(each.last_stable_offset == each.log_end for each in _partitions(broker))
            return "open"
        assert transaction.state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT, State.EMPTY)
        return "aborted" if committed is None else "committed"
    finally:
        await broker.stop()


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_is_finished_from_any_moment_on(tmp_path: Path, commit: bool) -> None:
    async def main() -> list[str]:
        pictures = await _photographed(
            tmp_path, lambda broker, producer: broker.transactions.end("x", producer, commit)
        )
        return [await _outcome(picture) for picture in pictures]

    outcomes = asyncio.run(main())
    ended = "committed" if commit else "aborted"
    assert outcomes[0] == "open"
    assert outcomes[-1] == ended
    decided = outcomes.index(ended)
    assert outcomes == ["open"] * decided + [ended] * (len(outcomes) - decided)
    assert len(outcomes) - decided >= 5  # after PREPARE: two markers, COMPLETE, and the end


def test_a_takeover_is_finished_from_any_moment_on(tmp_path: Path) -> None:
    async def main() -> list[str]:
        pictures = await _photographed(tmp_path, lambda broker, _: broker.transactions.init_producer_id("x", MINUTE))
        return [await _outcome(picture) for picture in pictures]

    outcomes = asyncio.run(main())
    assert outcomes[0] == "open"
    assert outcomes[-1] == "aborted"
    assert set(outcomes) == {"open", "aborted"}
