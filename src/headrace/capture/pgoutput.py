"""The messages of pgoutput, PostgreSQL's own plugin for logical replication, protocol version 1."""

from dataclasses import dataclass
from enum import Enum
from struct import Struct
from typing import Final, TypeAlias

__all__ = [
    "EPOCH",
    "UNCHANGED",
    "Begin",
    "Commit",
    "Delete",
    "Insert",
    "Message",
    "Relation",
    "RelationColumn",
    "Row",
    "Truncate",
    "Update",
    "decode",
]

EPOCH: Final = 946_684_800_000_000
"""PostgreSQL counts microseconds from the year 2000: this many after 1970."""


class Unchanged(Enum):
    """A large value, stored apart from its row (TOAST), that an update did not change: it is not in the log."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED
Row: TypeAlias = list[str | Unchanged | None]
"""The values of a row as PostgreSQL prints them."""


@dataclass(slots=True)
class Begin:
    commit_lsn: int
    microseconds: int
    """Since 1970."""
    xid: int


@dataclass(slots=True)
class Commit:
    commit_lsn: int
    end_lsn: int


@dataclass(slots=True)
class RelationColumn:
    name: str
    type: int
    modifier: int


@dataclass(slots=True)
class Relation:
    """The columns of a table, sent before its first change and after each change of its definition."""

    id: int
    schema: str
    name: str
    columns: tuple[RelationColumn, ...]


@dataclass(slots=True)
class Insert:
    relation: int
    new: Row


@dataclass(slots=True)
class Update:
    relation: int
    old: Row | None
    """None if the key has not changed and the table's replica identity is not FULL."""
    is_full: bool
    """Whether `old` is the whole row, and not only its key."""
    new: Row


@dataclass(slots=True)
class Delete:
    relation: int
    old: Row
    is_full: bool


@dataclass(slots=True)
class Truncate:
    relations: tuple[int, ...]


@dataclass(slots=True)
class Message:
    """What pg_logical_emit_message() wrote."""

    prefix: str
    content: bytes


BEGIN = Struct(">qqI")
COMMIT = Struct(">Bqq")
TYPE = Struct(">Ii")
IDS = Struct(">I")
SHORT = Struct(">h")
MESSAGE = Struct(">Bq")


def decode(
    data: bytes,
) -> Begin | Commit | Relation | Insert | Update | Delete | Truncate | Message | None:
    """A message; None for those that say nothing of rows (origins and names of types)."""
    match data[:1]:
        case b"I":
            return Insert(IDS.unpack_from(data, 1)[0], _row(data, 6)[0])
        case b"U":
            return _update(data)
        case b"D":
            return Delete(IDS.unpack_from(data, 1)[0], _row(data, 6)[0], data[5:6] == b"O")
        case b"B":
            lsn, moment, xid = BEGIN.unpack_from(data, 1)
            return Begin(lsn, moment + EPOCH, xid)
        case b"C":
            _, commit, end = COMMIT.unpack_from(data, 1)
            return Commit(commit, end)
        case b"R":
            return _relation(data)
        case b"T":
            (count,) = IDS.unpack_from(data, 1)
            return Truncate(tuple(IDS.unpack_from(data, 6 + 4 * index)[0] for index in range(count)))
        case b"M":
            prefix, at = _text(data, 1 + MESSAGE.size)
            return Message(prefix, data[at + 4 :])
        case _:
            return None


def _update(data: bytes) -> Update:
    (relation,) = IDS.unpack_from(data, 1)
    kind = data[5]
    if kind == 0x4E:  # N
        return Update(relation, None, False, _row(data, 6)[0])
    old, at = _row(data, 6)
    return Update(relation, old, kind == 0x4F, _row(data, at + 1)[0])  # O


def _row(data: bytes, at: int) -> tuple[Row, int]:
    count = int.from_bytes(data[at : at + 2])
    at += 2
    values: Row = []
    for _ in range(count):
        kind = data[at]
        if kind == 0x74:  # t
            start = at + 5
            at = start + int.from_bytes(data[at + 1 : start])
            values.append(data[start:at].decode())
        else:
            values.append(None if kind == 0x6E else UNCHANGED)  # n
            at += 1
    return values, at


def _relation(data: bytes) -> Relation:
    (number,) = IDS.unpack_from(data, 1)
    schema, at = _text(data, 5)
    name, at = _text(data, at)
    (count,) = SHORT.unpack_from(data, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        column, at = _text(data, at + 1)
        type_, modifier = TYPE.unpack_from(data, at)
        columns.append(RelationColumn(column, type_, modifier))
        at += TYPE.size
    return Relation(number, schema or "pg_catalog", name, tuple(columns))


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode(), end + 1
