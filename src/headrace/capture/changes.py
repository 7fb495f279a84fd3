"""From the messages of the stream, and chunks of snapshots between them, to records and their position."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from headrace.capture.catalog import Catalog
from headrace.capture.pgoutput import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Insert,
    Message,
    Relation,
    Truncate,
    Update,
    decode,
)
from headrace.capture.records import Record, RowWriter, Source, Transaction
from headrace.capture.snapshot import WATERMARK, Changed, Chunk, SnapshotReader
from headrace.capture.tasks import TableTask, Task
from headrace.capture.topics import live_keys
from headrace.config.cluster import Cluster
from headrace.delivery import LedgeredWriter
from headrace.errors import CaptureError
from headrace.topology.datatypes import Primitive

__all__ = ["Changes", "reached"]

LARGEST_BATCH = 10_000
LARGEST_BATCH_BYTES = 8 << 20
ACKNOWLEDGE_SECONDS = 1.0
WHOLE = -1
"""The number within a transaction that says: all of it."""


def reached(point: str) -> None:
    """A named moment, at which tests kill the process."""


class Changes:
    """What has been read and not yet written, and the position that writing it leads to."""

    def __init__(
        self,
        task: Task,
        keys: Mapping[str, tuple[str, ...]],
        catalog: Catalog,
        cluster: Cluster,
        writer: LedgeredWriter,
        position: dict[str, Any],
        remark: Callable[[str], None],
    ) -> None:
        self.position = position
        self.confirmed = 0
        """The end of the last commit of which everything is written."""
        self._acknowledged = 0
        self._acknowledged_at = 0.0
        self.written = 0
        self.seconds_behind = 0.0
        self.reader: SnapshotReader | None = None
        self._task = task
        self._keys = keys
        self._catalog = catalog
        self._cluster = cluster
        self._writer = writer
        self._remark = remark
        self._source = Source(task.prefix.rstrip("."), catalog.connection.info.dbname)
        self._tasks = {(one.table.schema, one.table.name): one for one in task.tables}
        self._by_topic = {one.topic: str(one.table) for one in task.tables}
        self._relations: dict[int, RowWriter | None] = {}
        self._known: dict[str, dict[str, str]] = {}
        self._changed: dict[str, Changed] = {}
        self._records: list[Record] = []
        self._bytes = 0
        self._transaction: Transaction | None = None
        self._begin: Begin | None = None
        self._seen = 0
        self._skipped = 0
        self._end = 0
        self._due: Chunk | None = None
        self._told: set[tuple[str, str]] = set()
        self._note_states()

    # What is read

    def take(self, data: bytes, lsn: int) -> None:
        """A message of the stream."""
        message = decode(data)
        match message:
            case Insert() | Update() | Delete():
                # Those of tables that are not captured count too: which ones are may differ after a restart.
                self._seen += 1
                writer = self._relations[message.relation]
                if writer is None:
                    return
                if self._seen > self._skipped:
                    self._change(writer, message, lsn)
                elif self._skipped != ALL:
                    self._count_only(writer, message)
            case Begin():
                if self._records and lsn <= self._acknowledged:
                    # The transaction began before what is acknowledged. While it passes, psycopg2 takes everything as
                    # processed and acknowledges on its own what the server has sent: what came before must be written.
                    self._write_now()
                self._start(message)
            case Commit():
                self._finish(message)
            case Relation():
                self._relations[message.id] = self._described(message)
            case Truncate():
                for relation in message.relations:
                    self._seen += 1
                    writer = self._relations[relation]
                    if writer is not None:
                        if self._seen > self._skipped:
                            self._truncate(writer, lsn)
                        elif self._skipped != ALL:
                            self._count(writer, 1)
            case Message():
                if message.prefix == WATERMARK and self.reader is not None:
                    self._due = self.reader.take(message.content)

    def acknowledge(self) -> int:
        """What the slot may be told of. It moves seldom: each time, transactions that run then are written alone."""
        now = time.monotonic()
        if now - self._acknowledged_at >= ACKNOWLEDGE_SECONDS:
            self._acknowledged, self._acknowledged_at = self.confirmed, now
        return self._acknowledged

    @property
    def is_full(self) -> bool:
        return len(self._records) >= LARGEST_BATCH or self._bytes >= LARGEST_BATCH_BYTES

    @property
    def has_whole_records(self) -> bool:
        """Whether there are records, and the transaction of the last one has ended."""
        return bool(self._records) and self._begin is None

    def _start(self, begin: Begin) -> None:
        lsn, n = self.position["lsn"], self.position["n"]
        self._begin = begin
        self._seen = 0
        self._skipped = ALL if begin.commit_lsn < lsn or (begin.commit_lsn == lsn and n == WHOLE) else 0
        if begin.commit_lsn == lsn and n != WHOLE:
            self._skipped = n
        milliseconds = begin.microseconds // 1000
        self._transaction = Transaction(
            self._source, begin.commit_lsn, begin.xid, milliseconds, max(milliseconds, self.position["time"]), lsn
        )

    def _finish(self, commit: Commit) -> None:
        begin, transaction = self._begin, self._transaction
        assert begin is not None
        assert transaction is not None
        self._begin = self._transaction = None
        self._end = commit.end_lsn
        if self._skipped != ALL and transaction.total:
            self._add(transaction.end(f"{self._task.prefix}transaction", self._by_topic.__getitem__))
        if self._skipped != ALL:
            self.position["time"] = transaction.timestamp
            self.position |= {"lsn": commit.commit_lsn, "n": WHOLE}
        self.seconds_behind = max(0.0, time.time() - begin.microseconds / 1e6)
        if self._due is not None:
            chunk, self._due = self._due, None
            self._add_chunk(chunk)
        if not self._records:
            self.confirmed = self._end

    def _change(self, writer: RowWriter, message: Insert | Update | Delete, lsn: int) -> None:
        transaction = self._transaction
        assert transaction is not None
        if not transaction.total:
            self._add(transaction.begin(f"{self._task.prefix}transaction"))
        match message:
            case Insert():
                key = writer.key(message.new)
                self._add(transaction.change(writer, "c", lsn, key, "null", writer.row(message.new)))
            case Update():
                self._update(writer, transaction, message, lsn)
            case Delete():
                key = writer.key(message.old)
                self._add(transaction.change(writer, "d", lsn, key, writer.row(message.old), "null"))
                self._add(Record(writer.task.topic, key, None, transaction.timestamp))
        self._note_keys(writer, message)

    def _update(self, writer: RowWriter, transaction: Transaction, message: Update, lsn: int) -> None:
        _fill(message)
        new, old = message.new, message.old
        key = writer.key(new)
        topic = writer.task.topic
        before = "null" if old is None or not message.is_full else writer.row(old)
        if old is not None and writer.key_of(old) != writer.key_of(new):
            old_key = writer.key(old)
            self._add(transaction.change(writer, "d", lsn, old_key, writer.row(old), "null"))
            self._add(Record(topic, old_key, None, transaction.timestamp))
            self._add(transaction.change(writer, "c", lsn, key, "null", writer.row(new)))
        else:
            self._add(transaction.change(writer, "u", lsn, key, before, writer.row(new)))
        if writer.unavailable:
            self._tell_unavailable(writer)

    def _count_only(self, writer: RowWriter, message: Insert | Update | Delete) -> None:
        """A change that was written before: its transaction's numbers go on."""
        if isinstance(message, Update):
            _fill(message)
        moved = (
            isinstance(message, Update)
            and message.old is not None
            and (writer.key_of(message.old) != writer.key_of(message.new))
        )
        self._count(writer, 1 + moved)

    def _count(self, writer: RowWriter, events: int) -> None:
        transaction, topic = self._transaction, writer.task.topic
        assert transaction is not None
        transaction.total += events
        transaction.counts[topic] = transaction.counts.get(topic, 0) + events

    def _note_keys(self, writer: RowWriter, message: Insert | Update | Delete) -> None:
        """While a snapshot of the table is taken: which keys have changed, and by whom."""
        changed = self._changed.get(str(writer.task.table))
        if changed is None:
            return
        assert self._transaction is not None
        if not isinstance(message, Insert) and message.old is not None:
            changed.keys[writer.key_of(message.old)] = self._transaction.xid
        if not isinstance(message, Delete):
            changed.keys[writer.key_of(message.new)] = self._transaction.xid

    def _truncate(self, writer: RowWriter, lsn: int) -> None:
        """Delete every key that the topic has; then the event itself."""
        transaction = self._transaction
        assert transaction is not None
        # The topic is read, so it must have everything that came before.
        seen, self._seen = self._seen, self._seen - 1
        self.write()
        self._seen = seen
        self._empty(writer.task, transaction.timestamp)
        if not transaction.total:
            self._add(transaction.begin(f"{self._task.prefix}transaction"))
        record = transaction.change(writer, "t", lsn, None, "null", "null")
        self._add(record._replace(partition=0))
        if (changed := self._changed.get(str(writer.task.table))) is not None:
            changed.truncated = transaction.xid

    def _described(self, relation: Relation) -> RowWriter | None:
        """How rows of the table are written from here on; refuses a table that no longer fits what the app declares."""
        task = self._tasks.get((relation.schema, relation.name))
        if task is None:
            return None
        kinds = self._catalog.kinds
        kinds.forget()  # a composite type may have changed
        types = {column.name: kinds.of(column.type, column.modifier).spark.ddl for column in relation.columns}
        name = str(task.table)
        before = self._known.get(name) or self.position.get("types", {}).get(name)
        if self._skipped != ALL:
            self._check_declared(task, before or types, types)
            # Kept with the position: a retyped column is refused after a restart too.
            self.position["types"] = {**self.position.get("types", {}), name: types}
        before, self._known[name] = self._known.get(name), types
        if before is not None and before != types:
            self._remark(_difference(task, before, types))
        return RowWriter(task, relation.columns, self._keys[str(task.table)], kinds)

    def _check_declared(self, task: TableTask, before: Mapping[str, str], types: Mapping[str, str]) -> None:
        needed = {**dict.fromkeys(task.columns, ""), **(task.declared or {})}
        new = [name for name in types if name not in needed]
        for name, ddl in needed.items():
            if name not in types:
                if self._is_there_now(task, name):
                    continue  # the change is from before the column was added
                renamed = f"; if it was renamed, its new name is among: {', '.join(new)}" if new else ""
                raise CaptureError(
                    f"the column {name!r} of {task.table} was dropped or renamed, and the app declares it{renamed}",
                    next_step="change the schema or columns= of app.capture() and restart: it resumes with this change",
                )
            is_changed = types[name] != before.get(name, types[name]) and task.masks.get(name) != "hash"
            if is_changed and ddl and ddl not in (types[name], Primitive.STRING.ddl):
                raise CaptureError(
                    f"the column {name!r} of {task.table} is {types[name]} now, and the app declares {ddl}",
                    next_step="change the schema of app.capture() and restart: it resumes with this change",
                )

    def _is_there_now(self, task: TableTask, column: str) -> bool:
        return any(one.name == column for one in self._catalog.table(task.table).columns)

    def _tell_unavailable(self, writer: RowWriter) -> None:
        for column in writer.unavailable:
            if (str(writer.task.table), column) not in self._told:
                self._told.add((str(writer.task.table), column))
                self._remark(
                    f"updates of {writer.task.table} do not have the large value of {column!r} if it did not change; "
                    f"to have it, type: ALTER TABLE {writer.task.table.quoted} REPLICA IDENTITY FULL"
                )
        writer.unavailable.clear()

    # Snapshots

    @property
    def is_in_snapshot(self) -> bool:
        return bool(self._changed)

    def snapshots_left(self) -> list[tuple[TableTask, tuple[str, ...], list[str] | None]]:
        """The tables that are not read to their end, with the last key that was written."""
        states = self.position["tables"]
        return [
            (one, self._keys[str(one.table)], states[str(one.table)]["after"])
            for one in self._task.tables
            if states.get(str(one.table)) is not None
        ]

    def snapshot_texts(self) -> dict[str, str]:
        """How far each snapshot is."""
        texts = {}
        for name, state in self.position["tables"].items():
            if state is not None:
                rows, total = state["rows"], state.get("of", 0)
                texts[name] = f"{rows:,} rows" + (f" ({min(99, rows * 100 // total)} %)" if total else "")
        return texts

    def clear_tables(self) -> None:
        """Delete the keys of tables whose snapshot is taken again."""
        for one in self._task.tables:
            state = self.position["tables"].get(str(one.table))
            if state is not None and state.get("clear"):
                self._empty(one, max(int(time.time() * 1000), self.position["time"]))
                self._set_state(one, {"after": None, "rows": 0})
                self._write_now()

    def begin_again(self) -> None:
        """Before a new slot is made: every table is emptied and read again, also after a crash on the way."""
        self._records.clear()
        self._begin = self._transaction = self._due = None
        self._bytes, self._relations = 0, {}
        states = {str(one.table): {"after": None, "rows": 0, "clear": True} for one in self._task.tables}
        self.position |= {"lsn": None, "n": 0, "tables": states}
        self._changed = {}  # of before: the topics are emptied, so rows with these keys are to come from the tables
        self._note_states()
        self._write_now()

    def begin_at(self, lsn: int) -> None:
        """At the beginning of a new slot."""
        self.position["lsn"] = lsn
        self._write_now()

    def _add_chunk(self, chunk: Chunk) -> None:
        name = str(chunk.task.table)
        state, changed = self.position["tables"].get(name), self._changed.get(name)
        if state is None or changed is None:
            return
        rows = chunk.rows
        if changed.truncated is not None:
            rows = rows if chunk.seen.sees(changed.truncated) else []
        if rows:
            writer = RowWriter(chunk.task, chunk.columns, self._keys[name], self._catalog.kinds)
            moment = max(int(time.time() * 1000), self.position["time"])
            after = self._source.of_rows(chunk.task, moment, self.position["lsn"])
            topic, key, row = chunk.task.topic, writer.key, writer.row
            if changed.keys:
                # A row that the chunk read after the change is the same, and has the large values that the log lacks.
                rows = [
                    one for one in rows if (xid := changed.keys.get(writer.key_of(one))) is None or chunk.seen.sees(xid)
                ]
            self.position["time"] = moment
            self._records += [
                Record(topic, key(one), f'{{"before":null,"after":{row(one)}{after}', moment) for one in rows
            ]
        changed.forget(chunk.seen)
        count = state["rows"] + len(chunk.rows)
        is_last = chunk.last_key is None
        self._set_state(chunk.task, None if is_last else {"after": chunk.last_key, "rows": count, "of": chunk.total})
        self._write_now()
        reached("chunk")
        if is_last:
            self._remark(f"the snapshot of {name} is complete: {count:,} rows")

    def _set_state(self, task: TableTask, state: dict[str, Any] | None) -> None:
        self.position["tables"] = {**self.position["tables"], str(task.table): state}
        self._note_states()

    def _note_states(self) -> None:
        """Keys are remembered for the tables that are in a snapshot."""
        left = [name for name, state in self.position["tables"].items() if state is not None]
        self._changed = {name: self._changed.get(name, Changed()) for name in left}

    # What is written

    def write(self) -> None:
        """Write what was read, in one transaction with its position."""
        if self._begin is not None and self._skipped != ALL and self._seen > self._skipped:
            self.position |= {"lsn": self._begin.commit_lsn, "n": self._seen}
        if self._records:
            self._write_now()

    def _write_now(self) -> None:
        """Write the records and the position, which may have changed without any."""
        reached("before the transaction")
        with self._writer.transaction(dict(self.position)) as producer:
            producer.send_records(self._records)
            reached("in the transaction")
        reached("after the transaction")
        self.written += len(self._records)
        self._records.clear()
        self._bytes = 0
        if self._begin is None:
            self.confirmed = max(self.confirmed, self._end)

    def _empty(self, task: TableTask, timestamp: int) -> None:
        """Delete every key that is in a topic. If it is interrupted, it is repeated with those that are left."""
        after = self._source.of_rows(task, timestamp, self.position["lsn"], op="d")
        for key in live_keys(self._cluster, task.topic):
            text = key.decode()
            self._add(Record(task.topic, text, f'{{"before":{text},"after":null{after}', timestamp))
            self._add(Record(task.topic, text, None, timestamp))
            if self.is_full:
                self._write_now()

    def _add(self, record: Record) -> None:
        self._records.append(record)
        self._bytes += len(record.value or "")


def _fill(update: Update) -> None:
    """A value that is stored apart from its row is not repeated in the new row; the old one may have it."""
    old = update.old
    if old is not None and UNCHANGED in update.new:
        update.new = [
            old[index] if value is UNCHANGED and (update.is_full or old[index] is not None) else value
            for index, value in enumerate(update.new)
        ]


ALL = 1 << 62
"""More changes than any transaction has."""


def _difference(task: TableTask, before: Mapping[str, str], now: Mapping[str, str]) -> str:
    added = [name for name in now if name not in before]
    dropped = [name for name in before if name not in now]
    retyped = [
        f"{name} from {before[name]} to {now[name]}" for name in now if name in before and before[name] != now[name]
    ]
    said = [f"added {', '.join(added)}"] * bool(added) + [f"dropped {', '.join(dropped)}"] * bool(dropped)
    said += [f"changed {', '.join(retyped)}"] * bool(retyped)
    return f"the columns of {task.table} have changed: {'; '.join(said) or 'reordered'}"
