"""The service that hands delayed messages over when they are due, each exactly once.

Delayed messages are records of one topic, in which the last record of an id counts. The service reads it, keeps an
index of what is due when, and writes each message to its destination in one transaction with the record that ends it
here, or that plans it anew if it is periodic. So the topic alone says what is pending: after a crash at any point the
index is brought up to the topic's end first, and an aborted transaction is as if it had not been.

Of several services of a cluster one is active: the member of a group that has the topic's one partition, or the first
one, until the group is formed. Whoever becomes active fences the one before.
"""

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka import KafkaError as ClientError

from headrace.config.cluster import Cluster
from headrace.config.groups import describe_group
from headrace.config.kafka_errors import explained, is_transient
from headrace.config.run import RunConfig
from headrace.delivery import TransactionalProducer
from headrace.errors import Error, GroupNotFound, KafkaError
from headrace.queues.clocks import Clock, ElapsedTime, SystemClock
from headrace.queues.contents import Contents
from headrace.queues.delayed import (
    DELAYED,
    Headers,
    Plan,
    Stored,
    prepare_delays,
    read_plan,
    record_of_end,
    record_of_plan,
)
from headrace.queues.index import ELAPSED, WALL, DelayIndex, Entry, Pending
from headrace.queues.messages import ID_HEADER

__all__ = ["DelayService", "index_path"]

GROUP = "headrace.delays"
TICK = 0.05
"""The longest wait in seconds: the wall clock may be set at any time."""
AT_ONCE = 2000
"""How many messages are handed over in one transaction."""
READ_AT_ONCE = 5000
AHEAD = 5000
"""Milliseconds before a message is due, its content is read."""
READ_AHEAD_AT_ONCE = 200
TRIM_SECONDS = 30.0
MOVE_AT_ONCE = 500
SPARSE = 8
"""When the topic has this many times more offsets than messages, the oldest messages are written again at its end."""
SMALL = 200_000
RETRY_SECONDS = 1.0
CONNECT_SECONDS = 10.0
REFUSED_SECONDS = 30.0
JUMP = 100
"""Milliseconds by which the wall clock must have jumped for the index to note it."""
MEMBER: dict[str, Any] = {
    "group.id": GROUP,
    "enable.auto.commit": False,
    "auto.offset.reset": "latest",
    "session.timeout.ms": 10_000,
    "heartbeat.interval.ms": 1_000,
    "partition.assignment.strategy": "range",
}
READER: dict[str, Any] = {
    "group.id": GROUP,
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "queued.max.messages.kbytes": 4096,
    "fetch.message.max.bytes": 1 << 20,
}
PRODUCER: dict[str, Any] = {
    "linger.ms": 0,
    "batch.num.messages": 1,  # a share group of Apache Kafka takes whole batches: each message is one
}
DIED = (ClientError._ALL_BROKERS_DOWN, ClientError._TRANSPORT)


def index_path(home: Path, cluster: Cluster) -> Path:
    """The index of a cluster's delayed messages. A topic that is made anew has an index of its own."""
    topic_id = cluster.topic_ids([DELAYED]).get(DELAYED, "0")
    return home / "delays" / f"{cluster.id()}-{topic_id}.db".replace("/", "_")


class DelayService:
    """Runs until it is stopped. `instance` names it in the group: restarted under the same name it resumes at once."""

    def __init__(
        self,
        config: RunConfig,
        instance: str,
        *,
        clock: Clock | None = None,
        notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._config = config
        self._cluster = Cluster(config)
        self._instance = instance
        self._clock = clock or SystemClock()
        self._notice = notice
        self._stopped = Event()
        self._leads = False
        self._writer: TransactionalProducer | None = None
        self._end: int | None = None
        """While it catches up: the offset that must be indexed before anything is handed over."""
        self._handed: set[int] = set()
        """What was handed over, until the index has read so."""
        self._end_asked = 0
        self._at_end: int | None = None
        """When the end of the topic was read last, on the steady clock."""
        self._handing: set[int] = set()
        """The targets of the messages that are being handed over."""
        self._refusing: dict[int, float] = {}
        """Targets that refused their messages, and until when they are left out."""
        self._one_by_one_until = 0.0
        self._shift = 0
        self._trim_at = 0.0
        self._trimmed = 0
        self.pending = 0
        """How many messages wait, when it was last looked at."""
        self.handed_over = 0
        self.active = Event()
        """Set while this service is the one that hands messages over."""

    def stop(self) -> None:
        """End `run`. Safe in any thread and in signal handlers."""
        self._stopped.set()

    def run(self) -> None:
        """Until `stop`. If the cluster does not answer, it is tried again."""
        while not self._stopped.is_set():
            try:
                self._serve()
            except sqlite3.Error as error:
                self._notice(f"the index of delayed messages cannot be used: {error}; retrying")
                self._stopped.wait(RETRY_SECONDS)
            except (KafkaError, KafkaException) as error:
                shown = explained(error, "serve delayed messages") if isinstance(error, KafkaException) else error
                self._notice(f"{shown}; retrying")
                self._stopped.wait(RETRY_SECONDS)

    def _serve(self) -> None:
        self._cluster = Cluster(self._config)
        prepare_delays(self._cluster, self._config)
        self._index_path = index_path(self._config.home, self._cluster)
        self._index = DelayIndex(self._index_path)
        self._elapsed = ElapsedTime(self._clock, self._index.shift)
        self._contents = Contents(self._cluster)
        self._reader: Consumer = self._cluster.consumer(READER)
        self._member: Consumer = self._cluster.consumer({**MEMBER, "group.instance.id": self._instance})
        # A group takes seconds to form. The first one begins at once, so that nothing waits after downtime.
        self._leads = self._has_no_members()
        try:
            self._member.subscribe(
                [DELAYED], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
            )
            while not self._stopped.is_set():
                self._turn()
        finally:
            self._step_down()
            self._member.close()
            self._reader.close()
            self._contents.close()
            self._index.close()

    def _has_no_members(self) -> bool:
        try:
            return not describe_group(self._cluster, GROUP).members
        except GroupNotFound:
            return True

    def _on_assign(self, member: Consumer, partitions: list[TopicPartition]) -> None:
        member.assign(partitions)
        member.pause(partitions)  # the reader reads
        self._leads = bool(partitions)

    def _on_revoke(self, *_: Any) -> None:
        self._leads = False

    def _step_down(self) -> None:
        self.active.clear()
        self._at_end = None
        self._handed.clear()
        self._contents.clear()
        if (writer := self._writer) is not None:
            self._writer = None
            self._reader.unassign()
            writer.close()

    def _turn(self) -> None:
        self._member.poll(0)
        if self._leads and self._writer is None:
            self._take_over()
        elif not self._leads and self._writer is not None:
            self._step_down()
        if self._writer is None:
            self._stopped.wait(TICK)
            return
        self._take(self._reader.poll(self._wait()))
        if self.active.is_set():
            try:
                self._hand_over()
                self._look_ahead()
                self._tidy()
            except Error as error:
                # The transaction may have been committed nevertheless: the topic will tell.
                self._step_down()
                self._notice(f"{error}; retrying")
                self._blame(error)
                self._stopped.wait(RETRY_SECONDS)

    def _blame(self, error: Error) -> None:
        """A topic that refuses its messages must not hold back those of others: find it, and leave it out a while."""
        if is_transient(error):
            return
        if len(self._handing) == 1:
            self._refusing |= dict.fromkeys(self._handing, time.monotonic() + REFUSED_SECONDS)
        self._one_by_one_until = time.monotonic() + REFUSED_SECONDS * 2

    def _take_over(self) -> None:
        """Fence the service before; what it has written is to be indexed before anything is handed over."""
        self._writer = TransactionalProducer(self._config, GROUP, **PRODUCER)
        # Another service of this home folder may have written to the index.
        self._index.close()
        self._index = DelayIndex(self._index_path)
        self._elapsed = ElapsedTime(self._clock, self._index.shift)
        self._end_asked = self._clock.steady()
        low, self._end = self._reader.get_watermark_offsets(TopicPartition(DELAYED, 0), timeout=CONNECT_SECONDS)
        start = self._index.next_offset
        if start is None or not low <= start <= self._end:
            self._index.begin(low)
            start = low
        self._reader.assign([TopicPartition(DELAYED, 0, start)])
        if start >= self._end:
            self._activate()

    def _activate(self) -> None:
        self._end = None
        self._at_end = self._end_asked
        self.active.set()

    def _wait(self) -> float:
        """Seconds until the next message is due, a tick at most."""
        if not self.active.is_set():
            return TICK
        waits = [due - now for line, now in self._now() if (due := self._index.next_due(line)) is not None]
        soonest = max(0, min(waits, default=1000)) / 1000
        # What was handed over stays in the index until the topic says so, a moment later.
        if self._refusing:
            return TICK
        return min(TICK, max(soonest, 0.001) if self._handed else soonest)

    def _now(self) -> tuple[tuple[int, int], tuple[int, int]]:
        return (WALL, self._clock.wall()), (ELAPSED, self._elapsed.now())

    # ---- reading

    def _take(self, first: Message | None) -> None:
        """Index this record and those that wait behind it."""
        if first is None:
            if self.active.is_set():
                self._at_end = self._clock.steady()
            return
        entries: list[Entry] = []
        next_offset: int | None = None
        for message in [first, *self._reader.consume(READ_AT_ONCE, 0)]:
            error = message.error()
            if error is None:
                next_offset = (message.offset() or 0) + 1
                if (entry := self._entry(message)) is not None:
                    entries.append(entry)
            elif error.code() == ClientError._PARTITION_EOF:
                next_offset = max(next_offset or 0, message.offset() or 0)
                self._at_end = self._clock.steady() if self.active.is_set() else None
            elif error.code() not in DIED and not error.retriable():
                raise KafkaException(error)
        if next_offset is None:
            return
        void = self._index.apply(entries, next_offset, self._elapsed.shift)
        self.pending = sum(self._index.counts().values())
        for entry in entries:
            self._note(entry)
        for id, offset in void:
            self._end_void(id, offset)
        if self._end is not None and next_offset >= self._end and self._writer is not None:
            self._activate()

    def _entry(self, message: Message) -> Entry | None:
        stored = read_plan(message.key(), message.value(), message.headers())
        if stored is None:
            self._notice(f"{DELAYED}@{message.offset()} is not a delayed message, and is skipped")
            return None
        plan = stored.plan
        if plan is None:
            return Entry(message.offset() or 0, stored, 0, WALL)
        if plan.at is not None:
            return Entry(message.offset() or 0, stored, plan.at, WALL)
        sent = self._elapsed.now() - self._age(message.timestamp()[1])
        return Entry(message.offset() or 0, stored, sent + (plan.after or 0), ELAPSED)

    def _age(self, timestamp: int) -> int:
        """Milliseconds since a record was written, by its timestamp.

        It was written after the topic's end was read last. A timestamp before that is of a clock that is wrong or has
        jumped: then the time counts from now on, so that no delay is shorter than it should be.
        """
        age = max(0, self._clock.wall() - timestamp)
        return age if self._at_end is None or age <= self._clock.steady() - self._at_end else 0

    def _note(self, entry: Entry) -> None:
        """Keep the content of what is due soon, and forget what is over."""
        if entry.stored.plan is None:
            if entry.stored.of is not None:
                self._handed.discard(entry.stored.of)
                self._contents.drop(entry.stored.of)
        else:
            if entry.stored.of is not None:
                self._handed.discard(entry.stored.of)
                self._contents.drop(entry.stored.of)
            now = self._clock.wall() if entry.line == WALL else self._elapsed.now()
            if entry.due - now <= AHEAD:
                self._contents.keep(entry.offset, entry.stored)

    def _end_void(self, id: bytes, offset: int) -> None:
        """A periodic message was cancelled while it was planned anew: say again that it ended, for later readers."""
        if self._writer is not None:
            with self._writer.transaction():
                self._write(*record_of_end(id, offset))

    # ---- handing over

    def _hand_over(self) -> None:
        while rows := self._due(AT_ONCE):
            if time.monotonic() < self._one_by_one_until:
                rows = [row for row in rows if row.target == rows[0].target]
            self._handing = {row.target for row in rows}
            contents = self._contents.get(row.offset for row in rows)
            assert self._writer is not None
            with self._writer.transaction():
                for row in rows:
                    self._send(row, contents[row.offset])
            self._handed.update(row.offset for row in rows)
            self.handed_over += len(rows)
            for row in rows:
                self._contents.drop(row.offset)
            self._handing = set()
            self._take(self._reader.poll(0))

    def _due(self, limit: int, ahead: int = 0) -> list[Pending]:
        """What is due now, or soon, and is not handed over."""
        most = limit + len(self._handed)
        self._refusing = {target: until for target, until in self._refusing.items() if time.monotonic() < until}
        found = [row for line, now in self._now() for row in self._index.due(line, now + ahead, most, self._refusing)]
        return [row for row in found if row.offset not in self._handed][:limit]

    def _send(self, row: Pending, stored: Stored) -> None:
        plan = stored.plan
        assert plan is not None
        headers = list(stored.headers)
        if plan.every is None:
            self._write(*record_of_end(stored.id, row.offset))
        else:
            # Each time is a message of its own, so with an id of its own.
            own = dict(headers).get(ID_HEADER) or stored.id
            headers = [(name, value) for name, value in headers if name != ID_HEADER]
            headers.append((ID_HEADER, own + f"@{row.due}".encode()))
            self._write(*self._again(row, stored, plan, plan.every))
        self._write(plan.to, stored.key, stored.value, headers)

    def _write(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        assert self._writer is not None
        self._writer.send_record(topic, key, value, headers=headers)

    def _again(self, row: Pending, stored: Stored, plan: Plan, every: int) -> tuple[str, bytes, bytes | None, Any]:
        """A periodic message, planned for the next time that is still to come: what was missed is not made up for."""
        now = self._clock.wall() if row.line == WALL else self._elapsed.now()
        due = row.due + every * max(1, -(-(now + 1 - row.due) // every))
        return self._planned(stored, plan, row, due, now)

    def _planned(
        self, stored: Stored, plan: Plan, row: Pending, due: int, now: int
    ) -> tuple[str, bytes, bytes | None, Any]:
        when = {"at": due} if row.line == WALL else {"after": max(0, due - now)}
        new = Plan(plan.to, every=plan.every, of=row.offset, **when)
        return record_of_plan(stored.id, new, stored.key, stored.value, stored.headers)

    # ---- what can wait

    def _look_ahead(self) -> None:
        """Read the contents of what is due soon, a few at a time."""
        if not self._contents.is_full:
            soon = self._due(AT_ONCE, AHEAD)
            missing = self._contents.missing(row.offset for row in soon)
            for offset, stored in self._contents.read(missing[:READ_AHEAD_AT_ONCE]):
                self._contents.keep(offset, stored)

    def _tidy(self) -> None:
        """From time to time delete what is older than the oldest pending message."""
        if abs(self._elapsed.shift - self._shift) > JUMP:
            self._shift = self._elapsed.shift
            self._index.keep_shift(self._shift)
        if time.monotonic() < self._trim_at:
            return
        self._trim_at = time.monotonic() + TRIM_SECONDS
        end = self._index.next_offset or 0
        lowest = self._index.lowest_offset()
        start = end if lowest is None else lowest
        if start > self._trimmed:
            try:
                self._cluster.delete_before({DELAYED: {0: start}})
            except KafkaError:
                pass  # it may not be allowed; the topic then grows, and works as well
            self._trimmed = start
        if end - start > SMALL and end - start > SPARSE * sum(self._index.counts().values()):
            self._move_oldest()

    def _move_oldest(self) -> None:
        """Write the oldest messages again at the topic's end, so that what is between can be deleted."""
        rows = [row for row in self._index.oldest(MOVE_AT_ONCE) if row.offset not in self._handed]
        contents = self._contents.get(row.offset for row in rows)
        assert self._writer is not None
        with self._writer.transaction():
            for row in rows:
                stored = contents[row.offset]
                assert stored.plan is not None
                now = self._clock.wall() if row.line == WALL else self._elapsed.now()
                self._write(*self._planned(stored, stored.plan, row, row.due, now))
        self._handed.update(row.offset for row in rows)
        self._trim_at = 0.0
