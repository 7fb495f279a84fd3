"""Members of a share group that misbehave in every way they can, and write down what they saw."""

import random
import threading
from types import SimpleNamespace

from tests.broker.faults.batches import decode
from tests.broker.faults.share_history import Answered, Asked, Delivered, ShareHistory
from tests.broker.share_clients import ACCEPT, REJECT, RELEASE, RawMember

TAKEN = (ACCEPT, REJECT)
LOCK_S = 2.0


class Worker:
    """One member after the other, each on a connection of its own, until it is stopped."""

    def __init__(self, address: str, group: str, topic: str, history: ShareHistory, seed: int) -> None:
        self.address, self.group, self.topic = address, group, topic
        self.history = history
        self.dice = random.Random(seed)
        self.stopping = threading.Event()
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name=f"worker-{seed}", daemon=True)

    def start(self) -> "Worker":
        self.thread.start()
        return self

    def stop(self) -> None:
        self.stopping.set()
        self.thread.join(60)
        assert not self.thread.is_alive()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        while not self.stopping.is_set():
            try:
                self._live()
            except OSError:
                self.stopping.wait(0.05)  # the broker is gone, or this one hung up
            except BaseException as failure:
                self.failure = failure
                return

    def _live(self) -> None:
        member = RawMember(self.address, self.group)
        try:
            member.join(self.topic)
            for _ in range(self.dice.randint(1, 30)):
                if self.stopping.is_set():
                    return
                held = fetch(member, self.history, self.dice.choice([1, 1, 3, 10]), 20)
                match self.dice.random():
                    case chance if chance < 0.05:
                        return  # dies with what it holds
                    case chance if chance < 0.1:
                        self.stopping.wait(LOCK_S * 1.1)  # hangs until its locks are over
                self._finish(member, held)
            if self.dice.random() < 0.5:
                member.fetch(epoch=-1)
                member.heartbeat(epoch=-1)
        finally:
            member.close()

    def _finish(self, member: RawMember, held: dict[int, str]) -> None:
        """Say of each record what became of it: in any order, some not at all, some twice."""
        offsets = list(held)
        self.dice.shuffle(offsets)
        for offset in offsets:
            kind = self.dice.choice([ACCEPT, ACCEPT, ACCEPT, ACCEPT, RELEASE, REJECT, None])
            if kind is None:
                continue
            for _ in range(2 if self.dice.random() < 0.1 else 1):
                acknowledge(member, self.history, offset, held[offset], kind)


def acknowledge(member: RawMember, history: ShareHistory, offset: int, value: str, kind: int) -> None:
    if kind in TAKEN:
        history.add(Asked(value, kind == ACCEPT))
    error, code = member.acknowledge((offset, offset, [kind]))
    if error:
        raise OSError(f"the session is over: {error}")
    if kind in TAKEN and not code:
        history.add(Answered(value, kind == ACCEPT))


def fetch(member: RawMember, history: ShareHistory, most: int, wait_ms: int) -> dict[int, str]:
    """What was acquired, by offset."""
    life = history.life
    answer = member.fetch(most=most, wait_ms=wait_ms)
    if answer.error_code:
        raise OSError(f"the session is over: {answer.error_code}")
    held: dict[int, str] = {}
    for topic in answer.responses:
        for partition in topic.partitions:
            held |= _delivered(partition, member, history, life)
    return held


def _delivered(partition: SimpleNamespace, member: RawMember, history: ShareHistory, life: int) -> dict[int, str]:
    if partition.error_code:
        raise OSError(f"the partition cannot be read: {partition.error_code}")
    values = {
        offset: value.decode()
        for batch in decode(partition.records)
        for offset, value in enumerate(batch.values, batch.base_offset)
    }
    held = {}
    for acquired in partition.acquired_records:
        for offset in range(acquired.first_offset, acquired.last_offset + 1):
            held[offset] = values[offset]
            history.add(Delivered(values[offset], member.member_id, acquired.delivery_count, life))
    return held


def drain(address: str, group: str, topic: str, history: ShareHistory) -> None:
    """Accept all that is left; a lock that a dead member holds is waited for."""
    member = RawMember(address, group).join(topic)
    try:
        while member.start_offset(topic)[1]:
            for offset, value in fetch(member, history, 100, 500).items():
                acknowledge(member, history, offset, value, ACCEPT)
    finally:
        member.close()
