"""What a process of capture is told to do, as JSON values: one database, its tables, and where their topics are."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from headrace.config.run import RunConfig
from headrace.topology import Topology
from headrace.topology.captures import Capture, TableName, captured_databases
from headrace.topology.duration import Duration

__all__ = ["TableTask", "Task", "tasks_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTask:
    """A table to capture."""

    table: TableName
    topic: str
    key: tuple[str, ...] = ()
    """Empty: the primary key."""
    columns: tuple[str, ...] = ()
    """Empty: all of them."""
    where: str | None = None
    masks: Mapping[str, str]
    snapshot: str = "initial"
    declared: Mapping[str, str] | None = None
    """The columns that the app declares, with their Spark types; None if the schema is read from the database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A database, and what is captured of it."""

    app: str
    prefix: str
    """Of the topics, with its dot."""
    address: str
    shown: str
    slot: str
    publication: str
    heartbeat: float
    lag_limit: int | None = None
    on_lag_limit: str = "warn"
    tables: tuple[TableTask, ...]
    again: tuple[str, ...] = ()
    """The tables whose snapshot is taken again."""
    request: str = ""
    """Identifies the wish for it: a process that is restarted does not take them once more."""
    config: RunConfig

    @property
    def name(self) -> str:
        """Of the process."""
        return f"capture {self.slot}"

    def to_json(self) -> dict[str, Any]:
        config = self.config
        kept = {
            "home": str(config.home),
            "kafka": config.kafka,
            "kafka_settings": dict(config.kafka_settings),
            "topic_settings": dict(config.topic_settings),
            "transaction_timeout": str(config.transaction_timeout),
        }
        return asdict(replace(self, config=RunConfig())) | {"config": kept}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> "Task":
        config = told["config"]
        tables = [
            TableTask(
                **{
                    **table,
                    "table": TableName(**table["table"]),
                    "key": tuple(table["key"]),
                    "columns": tuple(table["columns"]),
                }
            )
            for table in told["tables"]
        ]
        run = RunConfig(
            **{
                **config,
                "home": Path(config["home"]),
                "transaction_timeout": Duration.of(config["transaction_timeout"]),
            }
        )
        return cls(**{**told, "tables": tuple(tables), "again": tuple(told["again"]), "config": run})


def tasks_of(
    topology: Topology, config: RunConfig, *, snapshot: str | None = None, again: Sequence[str] | None = None
) -> list[Task]:
    """A task for each database of an app. `snapshot` replaces what the tables declare.

    `again` are the tables whose snapshot is taken again, as `public.orders`; an empty list means all of them.
    """
    tasks = []
    for database, captures in captured_databases(topology.nodes.values()).items():
        tables = tuple(_table_task(capture, snapshot) for capture in captures)
        repeated = (
            () if again is None else tuple(str(one.table) for one in captures if not again or str(one.table) in again)
        )
        tasks.append(
            Task(
                app=topology.app_name,
                prefix=topology.prefix or f"{topology.app_name}.",
                address=database.address or config.postgres_dsn,
                shown=str(database),
                slot=database.slot,
                publication=database.publication,
                heartbeat=database.heartbeat.microseconds / 1e6,
                lag_limit=database.lag_limit,
                on_lag_limit=str(database.on_lag_limit),
                tables=tables,
                again=repeated,
                request=str(uuid.uuid4()) if repeated else "",
                config=config,
            )
        )
    return tasks


def _table_task(capture: Capture, snapshot: str | None) -> TableTask:
    return TableTask(
        table=capture.table,
        topic=capture.topic_name,
        key=capture.key,
        columns=capture.columns,
        where=capture.where,
        masks={column: str(mask) for column, mask in capture.masks.items()},
        snapshot=snapshot or str(capture.snapshot),
        declared={column.name: column.type.ddl for column in capture.schema} if capture.has_schema else None,
    )
