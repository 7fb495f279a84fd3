"""A worker's slots in the order of keys: a classic consumer, and one message of a key at a time.

The messages of a key are in one partition, and a slot takes all messages of a key. A message that fails is tried again
in its place, after its pause, while the messages behind it wait: that keeps the order. Offsets are committed up to the
first message that is not done.

A record that kills its process has no count of deliveries here. So a file of the home folder names what is in progress;
after a crash, what it names counts as tried once more.
"""

import asyncio
import fcntl
import json
import os
import threading
import time
from collections import defaultdict, deque
from pathlib import Path
from queue import Empty, Queue
from typing import Any
from zlib import crc32

from confluent_kafka import Consumer, KafkaException, TopicPartition

from headrace.clients import Record
from headrace.clients.records import record_of
from headrace.config.cluster import Cluster
from headrace.config.kafka_errors import explained
from headrace.config.run import RunConfig
from headrace.errors import KafkaError
from headrace.queues.calling import AsyncCaller, Caller, PlainCaller
from headrace.queues.jobs import GivenBack, Jobs
from headrace.threads import Threads
from headrace.topology import Worker

__all__ = ["OrderedSlots"]

POLL_SECONDS = 0.1
WAIT = 0.02
COMMIT_SECONDS = 0.5
AHEAD = 8
"""Messages that wait in each slot. A full slot pauses the reading."""
SETTINGS: dict[str, Any] = {
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
    "queued.max.messages.kbytes": 4096,
}

Place = tuple[str, int]


class Done:
    """By partition: which offsets are done, and the first that is not."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[Place, list[int]] = defaultdict(list)
        self._done: dict[Place, set[int]] = defaultdict(set)
        self._next: dict[Place, int] = {}
        self._committed: dict[Place, int] = {}

    def take(self, place: Place, offset: int) -> None:
        with self._lock:
            self._open[place].append(offset)

    def end(self, place: Place, offset: int) -> None:
        with self._lock:
            waiting, done = self._open[place], self._done[place]
            done.add(offset)
            while waiting and waiting[0] in done:
                first = waiting.pop(0)
                done.discard(first)
                self._next[place] = first + 1

    def news(self) -> list[TopicPartition]:
        """The offsets to commit that have not been committed."""
        with self._lock:
            found = {place: at for place, at in self._next.items() if self._committed.get(place) != at}
            self._committed |= found
            return [TopicPartition(*place, at) for place, at in found.items()]

    def forget(self, place: Place) -> None:
        with self._lock:
            for known in (self._open, self._done, self._next, self._committed):
                known.pop(place, None)


class Journal:
    """What is in progress, in a file of this process. A process that was killed leaves its file behind."""

    def __init__(self, folder: Path, group: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self.tried: dict[str, int] = {}
        """By record: how often a process died of it before."""
        for path in sorted(folder.glob(f"{group}-*.journal")):
            self._adopt(path)
        self._file = (folder / f"{group}-{os.getpid()}.journal").open("w+")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._open: dict[str, int] = {}
        self._write()

    def begin(self, record: Record) -> int:
        """Returns how often it was tried before."""
        with self._lock:
            self._open[str(record)] = self.tried.get(str(record), 0)
            self._write()
            return self._open[str(record)]

    def end(self, record: Record) -> None:
        with self._lock:
            self._open.pop(str(record), None)
            self.tried.pop(str(record), None)
            self._write()

    def close(self) -> None:
        with self._lock:
            if not self._open and not self.tried:
                Path(self._file.name).unlink(missing_ok=True)
            self._file.close()

    def _adopt(self, path: Path) -> None:
        """Take over what a process left that does not run any more."""
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                said = json.loads(file.read() or "{}")
            except BlockingIOError:
                return
            except ValueError:
                said = {}
            for name, count in said.get("open", {}).items():
                self.tried[name] = max(self.tried.get(name, 0), count + 1)
            for name, count in said.get("tried", {}).items():
                self.tried[name] = max(self.tried.get(name, 0), count)
            path.unlink(missing_ok=True)

    def _write(self) -> None:
        text = json.dumps({"open": self._open, "tried": self.tried})
        self._file.seek(0)
        self._file.write(text)
        self._file.truncate()
        self._file.flush()


class OrderedSlots:
    """The slots of one worker in this process."""

    def __init__(self, worker: Worker, config: RunConfig, jobs: Jobs, threads: Threads) -> None:
        self._worker = worker
        self._jobs = jobs
        self._threads = threads
        self._cluster = Cluster(config)
        self._done = Done()
        self._journal = Journal(config.home / "workers", worker.group)
        self._work: list[Queue[tuple[int, Record]]] = [Queue(AHEAD) for _ in range(worker.concurrency)]
        self._generation = 0
        """Of the assignment: what was read under an earlier one is not processed."""
        self._busy: set[threading.Thread] = set()
        self._lost: set[Place] = set()
        self._kept: deque[Record] = deque()
        """Read while a slot was full."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: list[threading.Thread] = []

    def start(self) -> None:
        if self._worker.is_async:
            self._loop = asyncio.new_event_loop()
            self._threads.start(f"{self._worker.name} loop", self._loop.run_forever)
        self._running = [
            self._threads.start(f"{self._worker.name} slot {number}", lambda work=work: self._slot(work))  # type: ignore[misc]
            for number, work in enumerate(self._work)
        ]
        self._running.append(self._threads.start(f"{self._worker.name} reader", self._read))

    def join(self) -> None:
        for thread in self._running:
            thread.join()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _read(self) -> None:
        consumer = self._cluster.consumer({**SETTINGS, "group.id": self._worker.group})
        consumer.subscribe(
            [self._worker.queue.topic_name, self._worker.retry_topic],
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
        )
        commit_at = 0.0
        try:
            while not self._jobs.stopping.is_set():
                if self._kept:
                    self._hand_out(self._kept.popleft(), consumer)
                    continue
                message = consumer.poll(POLL_SECONDS)
                if message is not None and message.error() is None:
                    self._hand_out(record_of(message), consumer)
                elif message is not None and (error := message.error()) is not None and error.fatal():
                    raise explained(error, f"take messages of {self._worker.queue.name!r}")
                if time.monotonic() > commit_at:
                    commit_at = time.monotonic() + COMMIT_SECONDS
                    self._commit(consumer)
            for thread in self._running[:-1]:
                thread.join()
            self._commit(consumer)
        finally:
            consumer.close()
            self._journal.close()

    def _hand_out(self, record: Record, consumer: Consumer) -> None:
        place = (record.topic, record.partition)
        self._done.take(place, record.offset)
        generation = self._generation
        work = self._work[crc32(record.key or b"") % len(self._work)]
        paused = False
        while not self._jobs.stopping.is_set() and generation == self._generation:
            if not work.full():
                work.put((generation, record))
                break
            if not paused:
                paused = True
                consumer.pause(consumer.assignment())
            # It stays in the group meanwhile. A partition that it gains is not paused yet: what comes is kept.
            if (message := consumer.poll(POLL_SECONDS / 10)) is not None and message.error() is None:
                self._kept.append(record_of(message))
                consumer.pause(consumer.assignment())
            self._commit(consumer)
        if paused:
            consumer.resume(consumer.assignment())

    def _commit(self, consumer: Consumer) -> None:
        if news := [one for one in self._done.news() if (one.topic, one.partition) not in self._lost]:
            try:
                consumer.commit(offsets=news, asynchronous=False)
            except KafkaException:
                pass  # the next commit says more; what is not committed is delivered again

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._lost -= {(one.topic, one.partition) for one in partitions}

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """What waits is dropped, since the next owner gets it; what is in progress ends first."""
        self._generation += 1
        self._kept.clear()
        deadline = time.monotonic() + self._worker.timeout.microseconds / 1e6
        while self._busy and time.monotonic() < deadline:
            time.sleep(WAIT)
        self._commit(consumer)
        for one in partitions:
            self._lost.add((one.topic, one.partition))
            self._done.forget((one.topic, one.partition))

    def _slot(self, work: "Queue[tuple[int, Record]]") -> None:
        caller: Caller = PlainCaller(f"headrace {self._worker.name}") if self._loop is None else AsyncCaller(self._loop)
        while not self._jobs.stopping.is_set():
            try:
                generation, record = work.get(timeout=POLL_SECONDS)
            except Empty:
                continue
            self._busy.add(threading.current_thread())
            try:
                if generation == self._generation:
                    self._process(record, caller, generation)
                if generation == self._generation:
                    self._done.end((record.topic, record.partition), record.offset)
            except GivenBack:
                continue
            finally:
                self._busy.discard(threading.current_thread())

    def _process(self, record: Record, caller: Caller, generation: int) -> None:
        tried = self._journal.begin(record)
        while True:
            tried += 1
            try:
                over = self._jobs.process(record, tried, caller, retry_in_place=True)
            except GivenBack:
                self._journal.end(record)
                raise
            except (KafkaError, TimeoutError):
                tried -= 1
                over = False
            if over:
                self._journal.end(record)
                return
            pause = self._worker.queue.backoff.pause(tried).microseconds / 1e6
            if self._jobs.stopping.wait(pause) or generation != self._generation:
                self._journal.end(record)
                raise GivenBack
