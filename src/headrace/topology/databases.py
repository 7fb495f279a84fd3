"""A database that tables are captured from: its address, which is never shown whole, and how its changes are read."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TypeAlias
from urllib.parse import parse_qs, unquote

from headrace.errors import InputError
from headrace.topology.choices import Choice
from headrace.topology.duration import Duration, DurationLike

__all__ = ["Database", "DatabaseLike", "OnLagLimit", "database", "database_of"]

SCHEMES = ("postgresql://", "postgres://")
SHOWN_WORDS = ("host", "port", "dbname")
DSN_WORD = re.compile(r"(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|\S*)")
NOT_IN_A_SLOT = re.compile(r"[^a-z0-9_]+")
LONGEST_NAME = 63
"""Of a slot and of any identifier of PostgreSQL, in bytes."""
SIZE = re.compile(r"(\d+)\s*(kB|MB|GB|TB)")
BYTES = {"kB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
"""PostgreSQL's units of memory."""
HEARTBEAT = Duration.of("10 seconds")
SHORTEST_HEARTBEAT = Duration.of("1 second")
HOW_TO_WRITE = 'write it as "postgresql://user@host/database"'


class OnLagLimit(Choice):
    """What happens when the slot keeps more of the database's log than its limit."""

    WARN = "warn"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True)
class Database:
    """A database, and the slot and publication by which it is read. Tables of equal ones are captured together."""

    address: str | None = field(repr=False)
    """With user and password: for connections alone; messages show `str(database)`. None is the app's PostgreSQL."""
    slot: str = ""
    publication: str = ""
    heartbeat: Duration = HEARTBEAT
    """How often a message in the database's log lets the slot move on while the captured tables do not change."""
    lag_limit: int | None = None
    """How many bytes of the database's log the slot may keep."""
    on_lag_limit: OnLagLimit = OnLagLimit.WARN

    @property
    def shown(self) -> str:
        """Where it is, without user, password and options."""
        if self.address is None:
            return "the app's own PostgreSQL"
        words = _words_of(self.address)
        host, port, name = (words.get(word, "") for word in SHOWN_WORDS)
        return f"postgresql://{host}{':' + port if port else ''}/{name}"

    def named_after(self, app_name: str) -> "Database":
        """With names for slot and publication where none were given: those of the app and the database.

        Slots belong to a server, whose databases must not share one.
        """
        words = {} if self.address is None else _words_of(self.address)
        slot = self.slot or _slot_name("headrace", app_name, words.get("dbname", ""))
        return replace(self, slot=slot, publication=self.publication or slot)

    def __str__(self) -> str:
        return self.shown


DatabaseLike: TypeAlias = str | Database | None


def database(
    address: str | None,
    *,
    slot: str | None = None,
    publication: str | None = None,
    heartbeat: DurationLike = "10 seconds",
    lag_limit: str | int | None = None,
    on_lag_limit: str = "warn",
) -> Database:
    """A database for `app.capture`, where its address alone does not say enough. None is the app's own PostgreSQL.

    `slot` and `publication` are named after app and database unless named here. Every `heartbeat` a message in the
    database's log lets the slot move on while the captured tables do not change. Once the slot keeps more of the
    database's log than `lag_limit`, as "10 GB", a warning is printed; with `on_lag_limit="snapshot"` the slot is
    dropped as well, and the tables are read again.
    """
    if slot is not None and (not isinstance(slot, str) or not slot or NOT_IN_A_SLOT.search(slot)):
        raise InputError(f"slot: {slot!r} cannot be a slot's name", next_step="use lower-case letters, digits and _")
    for option, name in (("slot", slot), ("publication", publication)):
        if name is not None and (not isinstance(name, str) or not 0 < len(name.encode()) <= LONGEST_NAME):
            raise InputError(f"{option}: {name!r} is not a name of 1 to {LONGEST_NAME} characters")
    beat = Duration.of(heartbeat)
    if beat < SHORTEST_HEARTBEAT:
        raise InputError(f"heartbeat: {beat} is too short", next_step=f'make it at least "{SHORTEST_HEARTBEAT}"')
    limit, then = _bytes_of(lag_limit), OnLagLimit.of(on_lag_limit)
    if limit is None and then is not OnLagLimit.WARN:
        raise InputError("on_lag_limit needs a limit", next_step='add lag_limit="10 GB"')
    return Database(_address_of(address), slot or "", publication or "", beat, limit, then)


def database_of(value: DatabaseLike) -> Database:
    """An address, or what `database` gives."""
    return value if isinstance(value, Database) else database(value)


def _address_of(address: str | None) -> str | None:
    if address is None:
        return None
    if not isinstance(address, str) or not address.strip():
        raise InputError("the address is empty", next_step=HOW_TO_WRITE)
    if not address.strip().startswith(SCHEMES) and not DSN_WORD.match(address.strip()):
        # It is not quoted: a password may be in it.
        raise InputError("the address is not one of PostgreSQL", next_step=HOW_TO_WRITE)
    return address.strip()


def _bytes_of(size: str | int | None) -> int | None:
    if size is None or (isinstance(size, int) and size > 0):
        return size
    found = SIZE.fullmatch(size.strip()) if isinstance(size, str) else None
    if found is None or not int(found[1]):
        raise InputError(f"lag_limit: {size!r} is not a size", next_step='write it as "10 GB" or in bytes')
    return int(found[1]) * BYTES[found[2]]


def _slot_name(*parts: str) -> str:
    name = "_".join(NOT_IN_A_SLOT.sub("_", part.lower()) for part in parts if part)
    if len(name) <= LONGEST_NAME:
        return name
    digest = sha256(name.encode()).hexdigest()[:8]
    return f"{name[: LONGEST_NAME - 9]}_{digest}"


def _words_of(address: str) -> Mapping[str, str]:
    """What an address says that may be shown, by the words of libpq; nothing where that is not certain."""
    if not address.startswith(SCHEMES):
        found = {word.lower(): value.strip("'") for word, value in DSN_WORD.findall(address)}
        return {word: value for word, value in found.items() if word in SHOWN_WORDS}
    rest = address.partition("://")[2]
    if 0 <= rest.find("?") < rest.rfind("@"):
        return {}  # a password with a question mark, or an option with an @: what stands after it may be part of either
    place, _, options = rest.rpartition("@")[2].partition("?")
    host, _, name = place.partition("/")
    said = {word: values[-1] for word, values in parse_qs(options).items() if word in SHOWN_WORDS}
    return ({"host": host} if host else {}) | ({"dbname": unquote(name)} if name else {}) | said
