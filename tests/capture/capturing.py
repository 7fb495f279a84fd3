"""A capture in a process of its own, and what its topics have: for the tests of this folder."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka import KafkaError as ClientError

from headrace.capture.tasks import TableTask, Task
from headrace.config.run import RunConfig
from headrace.supervised import Child, ProcessStatus, Supervised
from headrace.threads import Threads
from headrace.topology.captures import TableName

LIMIT = 20.0
MAIN = "headrace.capture.process:main"


def until(condition: Callable[[], Any], limit: float = LIMIT) -> Any:
    end = time.monotonic() + limit
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.02)
    return found


@dataclass(frozen=True)
class Read:
    """A record of a topic."""

    partition: int
    offset: int
    key: dict[str, Any] | None
    value: dict[str, Any] | None
    timestamp: int


@dataclass
class Capturing:
    """A schema of its own in the database, a slot, a publication and topics, and the process that connects them."""

    dsn: str
    kafka: str
    folder: Path
    name: str = field(default_factory=lambda: f"c{uuid.uuid4().hex[:10]}")
    main: str = MAIN
    partitions: int = 2
    threads: Threads = field(default_factory=Threads)
    remarks: list[str] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, TableTask] = field(default_factory=dict)
    supervised: Supervised | None = None

    def __post_init__(self) -> None:
        self.db = psycopg.connect(self.dsn, autocommit=True)
        self.db.execute(f"CREATE SCHEMA {self.name}")
        self.db.execute(f"SET search_path = {self.name}")

    def reconnect(self) -> None:
        """After a restart of the server."""
        self.db = psycopg.connect(self.dsn, autocommit=True)
        self.db.execute(f"SET search_path = {self.name}")

    def sql(self, statement: str, *parameters: Any) -> list[Any]:
        done = self.db.execute(statement, parameters or None)  # type: ignore[arg-type]
        return done.fetchall() if done.description else []

    def table(self, name: str, **options: Any) -> str:
        """Capture a table; returns its topic."""
        topic = f"{self.name}.{name}"
        given = {"masks": {}} | options
        self.tables[name] = TableTask(table=TableName(self.name, name), topic=topic, **given)
        return topic

    @property
    def task(self) -> Task:
        config = RunConfig(home=self.folder, kafka=self.kafka, topic_settings={"partitions": str(self.partitions)})
        return Task(
            **{
                "app": self.name,
                "prefix": f"{self.name}.",
                "address": self.dsn,
                "shown": "the database",
                "slot": self.name,
                "publication": self.name,
                "heartbeat": 1.0,
                "tables": tuple(self.tables.values()),
                "config": config,
                **self.more,
            }
        )

    @contextmanager
    def running(self, task: Task | None = None, **settings: Any) -> Iterator[Supervised]:
        self.supervised = Supervised(
            self.folder / "logs", self.threads, remark=self.remarks.append, **({"attempts": 50} | settings)
        )
        given = task or self.task
        with self.supervised.running([Child(given.name, self.main, given.to_json())]):
            yield self.supervised

    @property
    def status(self) -> ProcessStatus:
        assert self.supervised is not None
        return self.supervised.status()[0]

    def failure(self) -> str:
        """The message with which the capture ends the run."""
        with self.running():
            return str(until(lambda: self.threads.failure))

    def read(self, topic: str) -> list[Read]:
        """All committed records, partition by partition."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.kafka,
                "group.id": "reader",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        try:
            found = consumer.list_topics(topic, timeout=10).topics[topic]
            if found.error is not None:
                return []
            left = set(found.partitions)
            consumer.assign([TopicPartition(topic, one, OFFSET_BEGINNING) for one in left])
            records = []
            end = time.monotonic() + LIMIT
            while left:
                assert time.monotonic() < end
                for message in consumer.consume(1000, 0.1):
                    if message.error() is None:
                        records.append(_read(message))
                    else:
                        assert message.error().code() == ClientError._PARTITION_EOF, message.error()
                        left.discard(message.partition())
            return sorted(records, key=lambda one: (one.partition, one.offset))
        finally:
            consumer.close()

    def events(self, topic: str) -> list[dict[str, Any]]:
        """The values in the order of the transactions; tombstones are left out."""
        return [one.value for one in self.read(topic) if one.value is not None]

    def folded(self, topic: str) -> dict[str, dict[str, Any]]:
        """The last row of each key."""
        return fold(self.read(topic))

    def await_snapshots(self) -> None:
        """Wait until every table was read to its end."""

        def complete() -> bool:
            self.threads.check()
            said = " ".join(self.remarks)
            return all(f"the snapshot of {one.table} is complete" in said for one in self.tables.values())

        until(complete)

    def await_events(self, topic: str, count: int) -> list[dict[str, Any]]:
        def enough() -> list[dict[str, Any]] | None:
            self.threads.check()
            found = self.events(topic)
            return found if len(found) >= count else None

        found: list[dict[str, Any]] = until(enough)
        assert len(found) == count, [(one["op"], one["after"] or one["before"]) for one in found]
        return found

    def await_rows(self, name: str, **options: Any) -> dict[str, dict[str, Any]]:
        """Wait until the topic, folded by key, is the table; values are compared as PostgreSQL's JSON has them."""
        topic = self.tables[name].topic

        def same() -> bool:
            self.threads.check()
            return keys_of(self.folded(topic)) == self.keys_in(name)

        until(same)
        return self.folded(topic)

    def keys_in(self, name: str) -> set[str]:
        key = self.tables[name].key or tuple(
            row[0]
            for row in self.sql(
                "SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid "
                "AND a.attnum = ANY(i.indkey) WHERE i.indrelid = %s::regclass AND i.indisprimary "
                "ORDER BY array_position(i.indkey::int2[], a.attnum)",
                f"{self.name}.{name}",
            )
        )
        chosen = ", ".join(f"'{one}', {one}" for one in key)
        rows = self.sql(f"SELECT json_build_object({chosen}) FROM {name}")
        return {json.dumps(row[0]) for row in rows}

    def with_(self, **changes: Any) -> Task:
        return replace(self.task, **changes)

    def close(self) -> None:
        slots = "FROM pg_replication_slots WHERE slot_name = %s"
        self.db.execute(f"SELECT pg_terminate_backend(active_pid, 5000) {slots} AND active", (self.name,))
        self.db.execute(f"SELECT pg_drop_replication_slot(slot_name) {slots}", (self.name,))
        self.db.execute(f"DROP PUBLICATION IF EXISTS {self.name}")
        self.db.execute(f"DROP SCHEMA {self.name} CASCADE")
        self.db.close()


def fold(records: list[Read]) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for record in records:
        if record.key is None:
            continue
        key = json.dumps(record.key)
        if record.value is None or record.value["op"] == "d":
            rows.pop(key, None)
        else:
            rows[key] = record.value["after"]
    return rows


def keys_of(rows: Mapping[str, Any]) -> set[str]:
    return set(rows)


def _read(message: Any) -> Read:
    key, value = message.key(), message.value()
    return Read(
        message.partition(),
        message.offset(),
        None if key is None else json.loads(key),
        None if value is None else json.loads(value),
        message.timestamp()[1],
    )
