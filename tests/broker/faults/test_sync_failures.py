"""Promise 5: after a failed sync nothing is trusted before a restart; a full disk is a pause, not an end."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from headrace.broker.errors import ErrorCode
from tests.broker.faults.batches import encode
from tests.broker.faults.client import LATEST, Client, Committed, Refused
from tests.broker.faults.faulty import SPACE, broken, full
from tests.broker.faults.harness import Running, abandoned, serving
from tests.broker.faults.history import History
from tests.broker.faults.journal import patiently
from tests.broker.faults.lives import scratch
from tests.broker.faults.powerloss import Loss, image_after
from tests.broker.faults.recording import FaultyRecordingDisk, RecordingStore


class Switch:
    """A fault that strikes while `when` says so; counts every operation on each path."""

    def __init__(self) -> None:
        self.when: Callable[[str, Path], OSError | None] = lambda operation, path: None
        self.calls: list[tuple[str, Path]] = []
        self._lock = threading.Lock()

    def __call__(self, operation: str, path: Path) -> None:
        with self._lock:
            self.calls.append((operation, path))
            error = self.when(operation, path)
        if error is not None:
            raise error

    def off(self) -> None:
        self.when = lambda operation, path: None

    def syncs(self, path: Path) -> int:
        return sum(operation in ("sync", "sync_all") and where == path for operation, where in self.calls)


def refusal(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(Refused) as refused:
        call()
    return refused.value.code


@contextmanager
def recorded(folder: Path, history: History, switch: Switch) -> Iterator[tuple[Running, Client]]:
    disk = FaultyRecordingDisk(folder, history, fault=switch)
    with (
        abandoned(folder, disk=disk, store=partial(RecordingStore, disk=disk)) as running,
        Client(running.address) as client,
    ):
        yield running, client


def log_of(running: Running, topic: str, partition: int) -> Path:
    return running.call(lambda: running.broker.topics.get(topic).partitions[partition].segments[-1].path)  # type: ignore[union-attr]


def fail_next_sync(switch: Switch, wanted: Path, operations: tuple[str, ...] = ("sync", "sync_all")) -> None:
    def when(operation: str, path: Path) -> OSError | None:
        if operation in operations and path == wanted:
            switch.off()
            return broken()
        return None

    switch.when = when


def after_power_loss(history: History, check: Callable[[Client], None], loss: Loss = Loss.NONE_KEPT) -> None:
    with scratch() as folder:
        image_after(history, history.now(), loss).write_to(folder)
        with abandoned(folder) as running, Client(running.address) as client:
            check(client)


def test_a_failed_sync_takes_its_partition_offline_and_no_other() -> None:
    history, switch = History(), Switch()
    with scratch() as folder, recorded(folder, history, switch) as (running, client):
        client.create_topic("t", 2)
        producer = client.init_producer()
        assert client.produce("t", 0, encode([b"kept"], *producer, 0)) == 0
        assert client.produce("t", 1, encode([b"other"])) == 0
        log = log_of(running, "t", 0)
        fail_next_sync(switch, log)
        synced = switch.syncs(log)
        with pytest.raises(Refused) as refused:
            client.produce("t", 0, encode([b"lost"], *producer, 1))
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        # Whatever else is asked of it: the kernel would now call the lost bytes synced.
        assert refusal(lambda: client.produce("t", 0, encode([b"more"], *producer, 1))) is refused.value.code
        assert refusal(lambda: client.produce("t", 0, encode([b"plain"]))) is refused.value.code
        assert refusal(lambda: client.fetch("t", 0, 0)) is refused.value.code
        assert refusal(lambda: client.offset("t", 0, LATEST)) is refused.value.code
        assert client.produce("t", 1, encode([b"goes on"])) == 1
        assert client.read("t", 1).records == {0: b"other", 1: b"goes on"}
        running.wait(running.broker.logs._checkpoint())
        assert switch.syncs(log) == synced + 1, "the failed file was synced again"

    def only_what_was_acknowledged(client: Client) -> None:
        assert client.read("t", 0).records == {0: b"kept"}
        assert client.read("t", 1).records == {0: b"other", 1: b"goes on"}
        assert client.produce("t", 0, encode([b"lost"], *producer, 1)) == 1

    after_power_loss(history, only_what_was_acknowledged)


def test_a_restart_recovers_what_a_failed_sync_left_and_makes_it_real() -> None:
    """The bytes are still in the page cache, marked clean; they must be written once more before they count."""
    history, switch = History(), Switch()
    with scratch() as folder:
        with recorded(folder, history, switch) as (running, client):
            client.create_topic("t", 1)
            producer = client.init_producer()
            client.produce("t", 0, encode([b"kept"], *producer, 0))
            fail_next_sync(switch, log_of(running, "t", 0))
            refusal(lambda: client.produce("t", 0, encode([b"unsure"], *producer, 1)))
        history = history.kill()
        with recorded(folder, history, switch) as (running, client):
            assert client.read("t", 0).records == {0: b"kept", 1: b"unsure"}
            assert client.produce("t", 0, encode([b"unsure"], *producer, 1)) == 1

    def all_is_there(client: Client) -> None:
        assert client.read("t", 0).records == {0: b"kept", 1: b"unsure"}

    after_power_loss(history, all_is_there)


def test_a_stop_after_a_failed_sync_is_no_clean_stop() -> None:
    """It may not be called synced: the next start must walk and rewrite it."""
    history, switch = History(), Switch()
    with scratch() as folder:
        with recorded(folder, history, switch) as (running, client):
            client.create_topic("t", 1)
            client.produce("t", 0, encode([b"kept"]))
            log = log_of(running, "t", 0)
            fail_next_sync(switch, log)
            refusal(lambda: client.produce("t", 0, encode([b"unsure"])))
            synced = switch.syncs(log)
            running.wait(running.broker.stop())
            assert switch.syncs(log) == synced
        history = history.kill()
        with recorded(folder, history, switch) as (_, client):
            seen = client.read("t", 0).records
    after_power_loss(history, lambda client: _same(client.read("t", 0).records, seen))


def _same(found: object, expected: object) -> None:
    assert found == expected


def test_a_failed_folder_sync_is_a_failed_sync() -> None:
    history, switch = History(), Switch()
    with scratch() as folder, recorded(folder, history, switch) as (_, client):
        client.create_topic("t", 1)
        client.create_topic("u", 1)
        switch.when = lambda operation, path: broken() if operation == "sync_folder" else None
        assert refusal(lambda: client.produce("t", 0, encode([b"one"]))) is ErrorCode.KAFKA_STORAGE_ERROR
        switch.off()
        assert refusal(lambda: client.produce("t", 0, encode([b"two"]))) is ErrorCode.KAFKA_STORAGE_ERROR
        assert client.produce("u", 0, encode([b"other"])) == 0


def test_those_who_wait_for_a_failed_sync_are_all_told() -> None:
    """Waiting producers, retries of theirs and markers: nobody hangs, nobody is told that it is done."""
    history, switch = History(), Switch()
    with scratch() as folder, recorded(folder, history, switch) as (running, client):
        client.create_topic("t", 1)
        client.produce("t", 0, encode([b"kept"]))
        fail_next_sync(switch, log_of(running, "t", 0))
        clients = [Client(running.address) for _ in range(8)]
        producer = client.init_producer()
        waiting = [(each, each.send_produce("t", 0, encode([b"same"], *producer, 0))) for each in clients]
        for each, correlation_id in waiting:
            assert refusal(partial(each.receive_produce, correlation_id)) is ErrorCode.KAFKA_STORAGE_ERROR
            each.close()


def test_a_full_disk_refuses_writes_and_serves_reads_until_there_is_space() -> None:
    switch = Switch()
    history = History()
    with scratch() as folder:
        with recorded(folder, history, switch) as (_, client):
            client.create_topic("t", 2, {"segment.bytes": "2000"})
            producer = client.init_producer()
            client.produce("t", 0, encode([b"before"], *producer, 0))
            client.commit_offset("g", "t", 0, Committed(1, "here"))
            switch.when = lambda operation, path: full() if operation in SPACE else None
            for value in (b"a" * 10, b"b" * 1000, b"c" * 1500):
                for partition in (0, 1):
                    code = refusal(partial(client.produce, "t", partition, encode([value])))
                    assert code is ErrorCode.KAFKA_STORAGE_ERROR
            code = refusal(lambda: client.produce("t", 0, encode([b"x" * 900], *producer, 1)))
            assert code is ErrorCode.KAFKA_STORAGE_ERROR
            assert client.read("t", 0).records == {0: b"before"}
            assert client.read("t", 1).records == {}
            assert client.offset("t", 0, LATEST) == 1
            assert client.committed_offset("g", "t", 0) == Committed(1, "here")
            switch.off()
            # A failed append leaves no trace: neither bytes nor a sequence.
            assert client.produce("t", 0, encode([b"x" * 900], *producer, 1)) == 1
            assert client.produce("t", 1, encode([b"first"])) == 0
            for number in range(2, 8):
                assert client.produce("t", 0, encode([b"y" * 700], *producer, number)) == number
            expected = client.read("t", 0).records
        history = history.kill()
        with recorded(folder, history, switch) as (_, client):
            assert client.read("t", 0).records == expected
            assert client.read("t", 1).records == {0: b"first"}
            assert client.produce("t", 0, encode([b"y" * 700], *producer, 7)) == 7
    after_power_loss(history, lambda client: _same(client.read("t", 0).records, expected))


def test_a_write_that_failed_and_could_not_be_taken_back_does_no_harm() -> None:
    """Half a batch stays behind, smaller ones follow, the segment is rolled, and the broker is restarted."""
    switch = Switch()
    with scratch() as folder:
        history = History()
        with recorded(folder, history, switch) as (running, client):
            client.create_topic("t", 1, {"segment.bytes": "2000"})
            client.produce("t", 0, encode([b"0"]))
            switch.when = lambda operation, path: full() if operation in (*SPACE, "truncate") else None
            assert refusal(lambda: client.produce("t", 0, encode([b"z" * 1800]))) is ErrorCode.KAFKA_STORAGE_ERROR
            switch.off()
            # The small one leaves some of the half standing; the large one needs a new segment.
            for number, size in enumerate((50, 1850, 1850, 20), 1):
                assert client.produce("t", 0, encode([b"v" * size])) == number
            expected = client.read("t", 0).records
            running.wait(running.broker.stop())
        history = history.kill()
        with recorded(folder, history, switch) as (_, client):
            assert client.read("t", 0).records == expected
        with recorded(folder, history, switch) as (_, client):
            assert client.read("t", 0).records == expected


def test_half_a_batch_between_two_segments_does_not_end_the_log() -> None:
    """The same, with power lost after the answer and before the new segment is in any checkpoint."""
    history, switch = History(), Switch()
    with scratch() as folder, recorded(folder, history, switch) as (running, client):
        client.create_topic("t", 1, {"segment.bytes": "2000"})
        client.produce("t", 0, encode([b"0"]))
        running.wait(running.broker.logs._checkpoint())
        switch.when = lambda operation, path: full() if operation in (*SPACE, "truncate") else None
        refusal(lambda: client.produce("t", 0, encode([b"z" * 1800])))
        switch.off()
        saving = running.broker.logs._save
        running.broker.logs._committer._save = lambda checkpoints: None
        for number, size in enumerate((50, 1850, 30), 1):
            assert client.produce("t", 0, encode([b"v" * size])) == number
        expected = client.read("t", 0).records
        assert len(expected) == 4
        history = history.kill()
        running.broker.logs._committer._save = saving
    for loss in (Loss.NONE_KEPT, Loss.ALL_KEPT):
        after_power_loss(history, lambda client: _same(client.read("t", 0).records, expected), loss)


@pytest.mark.parametrize("what", ["write", "create"])
def test_a_transaction_ends_once_there_is_space_again(what: str) -> None:
    history, switch = History(), Switch()
    with scratch() as folder, recorded(folder, history, switch) as (running, client):
        client.create_topic("t", 1)
        producer = client.init_producer("tx")
        patiently(lambda: client.add_partition("tx", producer, "t", 0))
        client.produce("t", 0, encode([b"in it"], *producer, 0, transactional=True), "tx")
        switch.when = lambda operation, path: full() if operation == what else None
        ended = threading.Event()

        def end() -> None:
            with Client(running.address) as other:
                patiently(lambda: other.end_transaction("tx", producer, commit=True))
            ended.set()

        thread = threading.Thread(target=end)
        thread.start()
        if what == "write":
            assert not ended.wait(0.3)
            assert client.read("t", 0, committed=True).records == {}
        switch.off()
        assert ended.wait(20), "the transaction was never ended"
        thread.join()
        assert client.read("t", 0, committed=True).records == {0: b"in it"}


def test_a_full_metadata_store_refuses_and_resumes(tmp_path: Path) -> None:
    """SQLite's own limit of pages gives the very error of a full disk."""
    with serving(tmp_path) as running, Client(running.address) as client:
        client.create_topic("t", 1)
        client.produce("t", 0, encode([b"one"]))
        connection = running.broker.store._connection
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count={pages + 4}")
        last = None

        def fill() -> None:
            nonlocal last
            for number in range(2000):
                entry = Committed(number, "m" * 1000)
                client.commit_offset(f"group {number}", "t", 0, entry)
                last = (f"group {number}", entry)

        assert refusal(fill) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert last is not None
        assert client.committed_offset(last[0], "t", 0) == last[1]
        assert client.produce("t", 0, encode([b"two"])) == 1
        assert client.read("t", 0).records == {0: b"one", 1: b"two"}
        connection.execute("PRAGMA max_page_count=1073741823")
        client.commit_offset("g", "t", 0, Committed(7, "again"))
        assert client.committed_offset("g", "t", 0) == Committed(7, "again")
        client.create_topic("v", 1)
        assert client.produce("v", 0, encode([b"one"])) == 0
