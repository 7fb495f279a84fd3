"""The process of a capture: one database, from its log and its tables to topics, exactly once.

The position is (LSN of a commit, number of changes within its transaction, state of the snapshots). It is written in
the Kafka transaction that has the records, so records and position become visible together. The changes that the server
sends again after a crash are recognised by their position and dropped. The slot is told of a commit only when Kafka
has all of it.
"""

import gc
import json
import time
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from headrace.capture import slots
from headrace.capture.catalog import Catalog, check_columns, open_catalog
from headrace.capture.changes import Changes, reached
from headrace.capture.replication import ReplicationStream, replication_errors
from headrace.capture.snapshot import SnapshotReader, failure_of
from headrace.capture.tasks import TableTask, Task
from headrace.capture.topics import ensure_topics
from headrace.config.cluster import Cluster
from headrace.delivery import Entry, LedgeredWriter
from headrace.errors import CaptureError
from headrace.supervised import Supervisor
from headrace.tables.connection import explained

__all__ = ["main"]

IDLE_SECONDS = 0.5
REPORT_SECONDS = 1.0
LAG_SECONDS = 5.0
HEARTBEAT = "headrace.heartbeat"


def main(supervisor: Supervisor, told: Mapping[str, Any]) -> None:
    """Capture a database until the process is stopped."""
    task = Task.from_json(told)
    # Records have no cycles: looking for them after every 700 objects would only cost time.
    gc.set_threshold(50_000, 20, 100)
    with explained(task.address, "be captured"):
        process = Process(task, supervisor)
        try:
            process.open()
            process.run()
        finally:
            process.close()


class Process:
    """The connections of a capture and what they do."""

    def __init__(self, task: Task, supervisor: Supervisor) -> None:
        self._task = task
        self._supervisor = supervisor
        self._cluster = Cluster(task.config)
        self._writer = LedgeredWriter(slots.writer_name(task), task.config, self._cluster)
        self._catalog: Catalog = open_catalog(task.address)
        self._stream: ReplicationStream | None = None
        self._reader: SnapshotReader | None = None
        self._changes: Changes | None = None
        self._is_over_limit = False
        self._reported = self._asked = self._beaten = time.monotonic()
        self._written = 0

    def open(self) -> None:
        """Prepare database and topics, fence a predecessor, and start the stream where it ended."""
        task, catalog = self._task, self._catalog
        slots.check_server(catalog, task)
        tables = [catalog.table(one.table) for one in task.tables]
        keys = {}
        for one, table in zip(task.tables, tables, strict=True):
            check_columns(table, one.columns, one.masks, one.declared or ())
            keys[str(one.table)] = catalog.key_of(table, one.key)
            if any(one.masks.get(name) == "null" for name in keys[str(one.table)]):
                raise CaptureError(f"mask= makes the key of {one.table} null", next_step='use "hash" for its columns')
        # Before the publication changes: it decides what the log has for whoever goes on with the old declaration.
        self._check_declared(keys)
        slots.prepare_publication(catalog, task, tables)
        topics = [one.topic for one in task.tables]
        ensure_topics(self._cluster, task.config, [*topics, f"{task.prefix}transaction"])
        position = self._open_writer()
        position["declared"] = {str(one.table): _declared(one, keys[str(one.table)]) for one in task.tables}
        self._changes = Changes(task, keys, catalog, self._cluster, self._writer, position, self._supervisor.remark)
        self._stream = ReplicationStream(task)
        self._changes.clear_tables()
        self._start_snapshots()

    def run(self) -> None:
        """Until the process is stopped."""
        changes = self._changes
        assert changes is not None
        take = changes.take
        self._report()
        with replication_errors(self._task):
            while not self._supervisor.is_stopping:
                stream = self._stream  # a new one where the slot was dropped
                assert stream is not None
                read = stream.read
                for _ in range(1000):
                    message = read()
                    if message is None:
                        break
                    take(message.payload, message.data_start)
                    if changes.is_full:
                        changes.write()
                else:
                    stream.confirm(changes.acknowledge())
                    self._look_after(changes)
                    continue
                if changes.has_whole_records:
                    changes.write()
                stream.confirm(changes.acknowledge())
                if self._look_after(changes):
                    stream.wait(IDLE_SECONDS if self._reader is None else 0.05)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        if self._stream is not None:
            self._stream.close()
        self._writer.close()
        self._catalog.connection.close()

    def _check_declared(self, keys: Mapping[str, tuple[str, ...]]) -> None:
        """Refuse to go on with other rows, columns, masks or keys than those that the topic has."""
        ledger = self._writer.ledger
        entry = ledger.last() if ledger.topic in self._cluster.partitions([ledger.topic]) else None
        if entry is None:
            return
        for one in self._task.tables:
            name = str(one.table)
            before = entry.position.get("declared", {}).get(name)
            is_same = before is None or before == _declared(one, keys[name])
            if not is_same and name in entry.position["tables"] and name not in self._task.again:
                raise CaptureError(
                    f"where=, columns=, mask= or the key of {name} has changed since its topic was begun",
                    next_step="undo it; or empty the topic and take a new snapshot with: headrace capture FILE "
                    f"--snapshot again={name}",
                )

    def _open_writer(self) -> dict[str, Any]:
        """The position at which the predecessor ended, or a new one, with a new slot."""
        task, catalog = self._task, self._catalog
        writer = f"{slots.system_identifier(catalog)}/{catalog.connection.info.dbname}/{task.slot}"
        beginning: dict[str, Any] = {"n": 0, "tables": {}, "time": 0}
        slot = slots.Slot.of(catalog, task.slot)

        def agree(entry: Entry | None) -> Entry | None:
            # Asked now that the predecessor is fenced: until then it may have written more.
            now, slot = slots.end_of_log(catalog), slots.Slot.of(catalog, task.slot)
            is_lost = slot is None or slot.wal_status == "lost"
            if entry is None or (
                self._wants_again(entry.position)
                and (is_lost or entry.writer != writer or (entry.position["lsn"] or 0) > now)
            ):
                if entry is not None:
                    # Whatever the topics have belongs to the state before.
                    beginning["tables"] = {str(one.table): NEW | {"clear": True} for one in task.tables}
                    beginning["time"] = entry.position["time"]
                    beginning["lsn"] = None
                else:
                    # It is created after the predecessor was fenced, and filled in before it is written.
                    beginning["lsn"] = slots.create_slot(catalog, task) if slot is None else slot.confirmed
                return None
            self._check_same(entry, writer, now)
            if slot is None and entry.position["lsn"] is not None:
                raise slots.lost_slot(task, entry.position["lsn"])
            return entry

        if slot is not None and not (task.again and slot.wal_status == "lost"):
            slots.check_slot(slot, catalog, task)
        self._writer.open(writer, agree, beginning)
        reached("opened")
        position: dict[str, Any] = dict(self._writer.position)
        if position["lsn"] is None:
            # The ledger says that all begins anew, before the old slot is gone: a crash in between loses no change.
            position["lsn"] = self._new_slot()
            with self._writer.transaction(dict(position)):
                pass
        states = dict(position["tables"])
        filled = self._cluster.filled([one.topic for one in task.tables if str(one.table) not in states])
        wants_again = self._wants_again(position)
        position["again"] = task.request or position.get("again", "")
        for one in task.tables:
            name = str(one.table)
            if wants_again and name in task.again:
                states[name] = NEW | {"clear": True}
            elif name not in states:
                # The topic may be older than this capture of its table: rows were deleted meanwhile.
                states[name] = NEW | {"clear": True} if one.snapshot == "initial" else None
                if one.snapshot != "initial" and any(filled.get(one.topic, {}).values()):
                    self._supervisor.remark(
                        f"the topic {one.topic!r} has records from before this capture of {name} began, which takes no "
                        "snapshot: rows that have changed meanwhile are not in it"
                    )
        position["tables"] = {
            name: state for name, state in states.items() if name in {str(o.table) for o in task.tables}
        }
        return position

    def _new_slot(self) -> int:
        reached("beginning again")
        slots.drop_slot(self._catalog, self._task)
        reached("slot dropped")
        lsn = slots.create_slot(self._catalog, self._task)
        reached("slot created")
        return lsn

    def _wants_again(self, position: Mapping[str, Any]) -> bool:
        """Whether tables are to be read again, and a process before this one has not begun with it."""
        return bool(self._task.again) and position.get("again") != self._task.request

    def _check_same(self, entry: Entry, writer: str, now: int) -> None:
        """Refuse to go on with another database, or with this one in an older state."""
        lsn = entry.position["lsn"] or 0
        if entry.writer == writer and lsn <= now:
            return
        problem = (
            f"the log of {self._task.shown} ends at {slots.lsn_text(now)}, before {slots.lsn_text(lsn)}, which was "
            "captured already: it was restored or failed over to an older state"
            if entry.writer == writer
            else f"{self._task.shown} is not the database that was captured into these topics before: it was restored "
            "from a backup, or the address has changed"
        )
        raise CaptureError(
            problem,
            next_step=slots.BEGIN_AGAIN,
        )

    def _start_snapshots(self) -> None:
        assert self._changes is not None
        if self._reader is not None:
            self._reader.close()
        left = self._changes.snapshots_left()
        self._reader = SnapshotReader(self._task, left) if left else None
        self._changes.reader = self._reader

    def _look_after(self, changes: Changes) -> bool:
        """What is due: reports, heartbeats, the lag of the slot. Returns whether the stream is the same afterwards."""
        stream = self._stream
        failure_of(self._reader)
        if self._reader is not None and not changes.is_in_snapshot:
            self._reader.close()
            self._reader = changes.reader = None
        now = time.monotonic()
        if now - self._reported >= REPORT_SECONDS:
            self._report()
        if now - self._beaten >= self._task.heartbeat:
            self._beaten = now
            self._catalog.connection.execute("SELECT pg_logical_emit_message(true, %s, '')", (HEARTBEAT,))
        if now - self._asked >= LAG_SECONDS:
            self._asked = now
            self._check_lag(changes)
        return self._stream is stream

    def _report(self) -> None:
        changes = self._changes
        assert changes is not None
        now = time.monotonic()
        rate = (changes.written - self._written) / max(now - self._reported, 0.001)
        self._reported, self._written = now, changes.written
        slot = slots.Slot.of(self._catalog, self._task.slot)
        figures: dict[str, Any] = {"changes/s": round(rate)}
        if slot is not None:
            figures["lag"] = size_text(slot.behind)
            figures["retained"] = size_text(slot.retained)
        figures["behind"] = f"{changes.seconds_behind:.1f} s"
        figures |= {f"snapshot of {name}": text for name, text in changes.snapshot_texts().items()}
        self._supervisor.report(**figures)

    def _check_lag(self, changes: Changes) -> None:
        slot, limit = slots.Slot.of(self._catalog, self._task.slot), self._task.lag_limit
        if slot is None:
            raise slots.lost_slot(self._task, changes.position["lsn"])
        if limit is None:
            return
        if slot.retained <= limit:
            self._is_over_limit = False
            return
        if not self._is_over_limit:
            self._is_over_limit = True
            self._supervisor.remark(
                f"the slot {self._task.slot!r} keeps {size_text(slot.retained)} of the log of {self._task.shown}, more "
                f"than the limit of {size_text(limit)}"
            )
        if self._task.on_lag_limit == "snapshot":
            self._forget_slot()

    def _forget_slot(self) -> None:
        """Drop the slot and begin again with a snapshot of every table: the server can remove its log."""
        assert self._changes is not None
        assert self._stream is not None
        self._supervisor.remark(f"dropping the slot {self._task.slot!r} and reading the tables again")
        self._stream.close()
        self._changes.begin_again()
        self._changes.begin_at(self._new_slot())
        self._stream = ReplicationStream(self._task)
        self._changes.clear_tables()
        self._start_snapshots()


def _declared(task: TableTask, key: tuple[str, ...]) -> str:
    """What decides which rows and values a topic has, as a short text that is compared."""
    told = [task.where, sorted(task.columns), sorted(task.masks.items()), key]
    return sha256(json.dumps(told).encode()).hexdigest()[:16]


NEW: dict[str, Any] = {"after": None, "rows": 0}
"""The state of a snapshot that has not begun."""


def size_text(size: int) -> str:
    return (
        f"{size:,} B"
        if size < 1 << 10
        else f"{size / (1 << 10):,.0f} kB"
        if size < 1 << 20
        else f"{size / (1 << 20):,.1f} MB"
    )
