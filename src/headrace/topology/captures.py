"""Captured tables: what is taken from a database, and how; as plain values. `capture/` writes their topics."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from headrace.errors import InputError
from headrace.topology.choices import Choice
from headrace.topology.databases import Database
from headrace.topology.datatypes import Column, Primitive
from headrace.topology.declaring import names_of
from headrace.topology.nodes import Node, TableTopic
from headrace.topology.schema import Schema

__all__ = [
    "UNKNOWN_SCHEMA",
    "Capture",
    "Mask",
    "MaskLike",
    "Snapshot",
    "TableName",
    "captured_databases",
    "masks_of",
]

IDENTIFIER = re.compile(r'"((?:[^"]|"")+)"|([A-Za-z_\u0080-\uffff][\w$\u0080-\uffff]*)')
NOT_IN_A_TOPIC = re.compile(r"[^A-Za-z0-9._-]")
# Stands in for the columns of a table until they have been read from the database.
UNKNOWN_SCHEMA = Schema((Column("unknown", Primitive.STRING),))


class Snapshot(Choice):
    """Whether the rows that are in a table when its capture begins are written to the topic."""

    INITIAL = "initial"
    NEVER = "never"


class Mask(Choice):
    """What stands in the log instead of a column's value."""

    NULL = "null"
    HASH = "hash"

    def problems(self, column: Column) -> Iterator[tuple[str, str]]:
        """Why it cannot stand for a column's value, each with what to do."""
        if self is Mask.NULL and not column.nullable:
            yield f"{column.name!r} is masked by null and declared NOT NULL", "leave NOT NULL out of the schema"
        if self is Mask.HASH and column.type is not Primitive.STRING:
            yield f"{column.name!r} is {column.type.ddl}, and its hash is text", "make it STRING in the schema"


MaskLike: TypeAlias = str | Sequence[str] | Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class TableName:
    """A table of a database, by the names PostgreSQL's catalog has: `public.orders`."""

    schema: str
    name: str

    @classmethod
    def of(cls, text: str) -> "TableName":
        """Read it as SQL does: what is not in double quotes is folded to lower case; `public` may be left out."""
        if not isinstance(text, str):
            raise InputError(f"{text!r} is not the name of a table", next_step='write it as "public.orders"')
        parts, rest = [], text.strip()
        while match := IDENTIFIER.match(rest):
            parts.append(match[1].replace('""', '"') if match[1] is not None else match[2].lower())
            rest = rest[match.end() :]
            if not rest.startswith("."):
                break
            rest = rest[1:]
        if rest or len(parts) not in (1, 2) or text.strip().endswith("."):
            raise InputError(f"{text!r} is not the name of a table", next_step='write it as "public.orders"')
        return cls(*parts) if len(parts) == 2 else cls("public", parts[0])

    @property
    def quoted(self) -> str:
        """As SQL takes it."""
        return ".".join('"' + part.replace('"', '""') + '"' for part in (self.schema, self.name))

    @property
    def as_topic(self) -> str:
        """As part of a topic's name: what Kafka does not allow there is replaced, as Debezium does."""
        return NOT_IN_A_TOPIC.sub("_", str(self))

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Capture(TableTopic):
    """A table of a database, whose changes `capture` writes to a topic in Debezium's envelope."""

    kind = "capture"
    is_input = False
    is_captured = True

    database: Database
    table: TableName
    columns: tuple[str, ...] = ()
    """Those that enter the log, beside the key; all if it is empty."""
    where: str | None = None
    """A condition in SQL on the table's columns: a row that leaves it is deleted, one that enters it is created."""
    masks: Mapping[str, Mask] = field(default_factory=dict)
    snapshot: Snapshot = Snapshot.INITIAL
    has_schema: bool = True
    """Whether the columns are known, and need not be read from the database."""

    @property
    def is_described(self) -> bool:
        """Whether columns and key are known: the database tells what the declaration leaves out."""
        return self.has_schema and bool(self.key)

    @property
    def drawing_facts(self) -> Iterator[str]:
        yield f"{self.table} of {self.database}"
        yield from super().drawing_facts


def captured_databases(nodes: Iterable[Node]) -> dict[Database, tuple[Capture, ...]]:
    """The captured tables among nodes, by database: each database is one process, with one slot and publication."""
    found: dict[Database, list[Capture]] = {}
    for node in nodes:
        if isinstance(node, Capture):
            found.setdefault(node.database, []).append(node)
    return {database: tuple(captures) for database, captures in found.items()}


def masks_of(value: MaskLike) -> dict[str, Mask]:
    """Columns and how they are masked: `{"email": "hash"}`; names alone become null."""
    if isinstance(value, Mapping):
        return {name: Mask.of(how) for name, how in zip(names_of(list(value)), value.values(), strict=True)}
    return dict.fromkeys(names_of(value), Mask.NULL)
