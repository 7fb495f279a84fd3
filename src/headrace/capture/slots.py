"""The publication and the slot of a capture: created, checked, measured and dropped. Errors name what to type."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from headrace.capture.catalog import Catalog, CatalogTable, open_catalog
from headrace.capture.tasks import TableTask, Task
from headrace.config.cluster import Cluster
from headrace.config.topics import delete_topics
from headrace.delivery import TopicLedger
from headrace.errors import CaptureError, PostgresUnavailable
from headrace.tables.connection import explained

__all__ = ["Slot", "SlotStatus", "drop_capture", "lsn_text", "prepare_publication", "slot_status", "writer_name"]

BEGIN_AGAIN = "empty the topics and take a new snapshot with: headrace capture FILE --snapshot again"
OLDEST_VERSION = 15
"""The first that has conditions in publications."""
SLOT = """
SELECT plugin, database, active, active_pid, wal_status, coalesce(confirmed_flush_lsn - '0/0'::pg_lsn, 0)::bigint,
  coalesce(pg_current_wal_lsn() - restart_lsn, 0)::bigint,
  coalesce(pg_current_wal_lsn() - confirmed_flush_lsn, 0)::bigint
FROM pg_replication_slots WHERE slot_name = %s
"""
PUBLISHED = """
SELECT n.nspname, c.relname, pg_get_expr(r.prqual, r.prrelid) FROM pg_publication_rel r
JOIN pg_publication p ON p.oid = r.prpubid JOIN pg_class c ON c.oid = r.prrelid
JOIN pg_namespace n ON n.oid = c.relnamespace WHERE p.pubname = %s
"""
PUBLICATION = """
SELECT puballtables, pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot,
  coalesce(to_jsonb(p) ->> 'pubgencols', 's') = 's' FROM pg_publication p WHERE pubname = %s
"""
PUBLISHED_IN_PART = """
SELECT n.nspname, c.relname FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE p.pubname = %s AND r.prattrs IS NOT NULL
"""
CONDITION_COLUMNS = """
SELECT DISTINCT a.attname FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
JOIN pg_depend d ON d.classid = 'pg_publication_rel'::regclass AND d.objid = r.oid
  AND d.refclassid = 'pg_class'::regclass AND d.refobjid = r.prrelid AND d.refobjsubid > 0
JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
WHERE p.pubname = %s AND r.prrelid = %s
"""


def lsn_text(lsn: int) -> str:
    """As PostgreSQL prints it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def writer_name(task: Task) -> str:
    """The name of a capture's writer: its transactional id, and that of its ledger."""
    return f"capture.{task.slot}"


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot, now."""

    plugin: str
    database: str
    is_active: bool
    active_pid: int | None
    wal_status: str | None
    confirmed: int
    retained: int
    """Bytes of the log that the server keeps for it."""
    behind: int
    """Bytes of the log that it has not confirmed."""

    @classmethod
    def of(cls, catalog: Catalog, name: str) -> "Slot | None":
        found = catalog.connection.execute(SLOT, (name,)).fetchone()
        return None if found is None else cls(*found)


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """What `headrace capture status` shows of a database."""

    database: str
    slot: str
    publication: str
    exists: bool
    is_active: bool
    retained: int | None
    behind: int | None
    wal_status: str | None
    tables: dict[str, str]


def check_server(catalog: Catalog, task: Task) -> None:
    """Refuse a server that cannot be captured from."""
    connection = catalog.connection
    if catalog.version < OLDEST_VERSION:
        raise CaptureError(
            f"{task.shown} is PostgreSQL {catalog.version}, and capture needs {OLDEST_VERSION} or newer",
            next_step="upgrade the server",
        )
    (level,) = _one(connection.execute("SHOW wal_level"))
    if level != "logical":
        raise CaptureError(
            f"{task.shown} runs with wal_level = {level}, and its log has no changes of rows",
            next_step="type: ALTER SYSTEM SET wal_level = 'logical'; then restart the server",
        )
    role, may = _one(
        connection.execute("SELECT rolname, rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user")
    )
    if not may:
        raise CaptureError(
            f"the role {role!r} may not read the log of {task.shown}",
            next_step=f'type, as a superuser: ALTER ROLE "{role}" REPLICATION; and: GRANT SELECT ON '
            f'{", ".join(one.table.quoted for one in task.tables)} TO "{role}"',
        )


def prepare_publication(catalog: Catalog, task: Task, tables: Sequence[CatalogTable]) -> None:
    """Create the publication, and add the tables that it lacks; the conditions are those that are declared."""
    connection = catalog.connection
    name = _quoted(task.publication)
    exists = connection.execute(PUBLICATION, (task.publication,)).fetchone()
    if exists is None:
        options = "publish_via_partition_root = true"
        options += ", publish_generated_columns = stored" if catalog.version >= 18 else ""
        listed = ", ".join(_entry(one) for one in task.tables)
        with connection.transaction():
            with _told(
                task, f"CREATE PUBLICATION {name} FOR TABLE {listed} WITH ({options})", "the publication"
            ) as statement:
                connection.execute(statement.encode())
            _check_conditions(catalog, task, tables)
        return
    _check_publication(catalog, task, tables, *exists[1:])
    if exists[0]:
        if any(one.where for one in task.tables):
            raise CaptureError(
                f"the publication {task.publication!r} is FOR ALL TABLES and cannot have where=",
                next_step="name another publication, or leave where= out",
            )
        return
    listed_now = {
        (schema, table): condition for schema, table, condition in connection.execute(PUBLISHED, (task.publication,))
    }
    with connection.transaction():
        for one in task.tables:
            place = (one.table.schema, one.table.name)
            if place not in listed_now:
                with _told(
                    task, f"ALTER PUBLICATION {name} ADD TABLE {_entry(one)}", f"the table {one.table} to it"
                ) as statement:
                    connection.execute(statement.encode())
            elif (one.where is None) != (listed_now[place] is None) or one.where is not None:
                for statement in (
                    f"ALTER PUBLICATION {name} DROP TABLE {one.table.quoted}",
                    f"ALTER PUBLICATION {name} ADD TABLE {_entry(one)}",
                ):
                    with _told(task, statement, f"the condition of {one.table}"):
                        connection.execute(statement.encode())
        _check_conditions(catalog, task, tables)


def _check_publication(
    catalog: Catalog, task: Task, tables: Sequence[CatalogTable], has_all: bool, by_root: bool, has_generated: bool
) -> None:
    """Refuse a publication of somebody else's that leaves changes or columns out, or names partitions."""
    name = _quoted(task.publication)
    ids = [table.id for table in tables]
    partitioned = "SELECT EXISTS (SELECT FROM pg_class WHERE relkind = 'p' AND oid = ANY(%s))"
    generated = "SELECT EXISTS (SELECT FROM pg_attribute WHERE attgenerated = 's' AND attrelid = ANY(%s))"
    problem = option = ""
    if not has_all:
        problem, option = "leaves kinds of changes out", "publish = 'insert, update, delete, truncate'"
    elif not by_root and _one(catalog.connection.execute(partitioned, (ids,)))[0]:
        problem, option = "has changes under the names of partitions", "publish_via_partition_root = true"
    elif not has_generated and _one(catalog.connection.execute(generated, (ids,)))[0]:
        problem, option = "leaves generated columns out", "publish_generated_columns = stored"
    if problem:
        raise CaptureError(
            f"the publication {task.publication!r} of {task.shown} {problem}",
            next_step=f"type, as its owner: ALTER PUBLICATION {name} SET ({option})",
        )
    in_part = set(catalog.connection.execute(PUBLISHED_IN_PART, (task.publication,)))
    for one in task.tables:
        if (one.table.schema, one.table.name) in in_part:
            raise CaptureError(
                f"the publication {task.publication!r} of {task.shown} has a list of columns for {one.table}",
                next_step=f"type, as its owner: ALTER PUBLICATION {name} DROP TABLE {one.table.quoted}; "
                f"ALTER PUBLICATION {name} ADD TABLE {one.table.quoted}",
            )


def create_slot(catalog: Catalog, task: Task) -> int:
    """Create the slot; returns the position from which it has every change."""
    try:
        with explained(task.address, f"create the slot {task.slot!r}", but=psycopg.Error):
            found = catalog.connection.execute(
                "SELECT (lsn - '0/0'::pg_lsn)::bigint FROM pg_create_logical_replication_slot(%s, 'pgoutput')",
                (task.slot,),
            )
            return int(_one(found)[0])
    except psycopg.errors.ConfigurationLimitExceeded as error:
        raise CaptureError(
            f"all replication slots of {task.shown} are in use",
            next_step="drop one of pg_replication_slots with: SELECT pg_drop_replication_slot('NAME'); "
            "or type: ALTER SYSTEM SET max_replication_slots = 20; then restart the server",
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise CaptureError(
            f"{task.shown} does not let the role create a slot: {error.diag.message_primary}",
            next_step="type, as a superuser: ALTER ROLE ... REPLICATION",
        ) from error
    except psycopg.Error as error:
        raise _postgres_error(error, task, f"create the slot {task.slot!r}") from error


def check_slot(slot: Slot, catalog: Catalog, task: Task) -> None:
    """Refuse a slot that is not ours to read."""
    if slot.plugin != "pgoutput" or slot.database != catalog.connection.info.dbname:
        raise CaptureError(
            f"the slot {task.slot!r} is one of the plugin {slot.plugin} in the database {slot.database!r}",
            next_step="name another slot: headrace.database(..., slot=...)",
        )
    if slot.wal_status == "lost":
        raise CaptureError(
            f"{task.shown} has removed log that the slot {task.slot!r} had not read yet (max_slot_wal_keep_size)",
            next_step=BEGIN_AGAIN,
        )


def lost_slot(task: Task, lsn: int) -> CaptureError:
    return CaptureError(
        f"the slot {task.slot!r} of {task.shown} was dropped: changes after {lsn_text(lsn)} are lost",
        next_step=BEGIN_AGAIN,
    )


def drop_slot(catalog: Catalog, task: Task) -> bool:
    """Drop the slot, whoever reads it; False if there is none."""
    slot = Slot.of(catalog, task.slot)
    if slot is None:
        return False
    with explained(task.address, f"drop the slot {task.slot!r}"):
        if slot.active_pid is not None:
            catalog.connection.execute("SELECT pg_terminate_backend(%s, 5000)", (slot.active_pid,))
        catalog.connection.execute("SELECT pg_drop_replication_slot(%s)", (task.slot,))
    return True


def slot_status(task: Task, cluster: Cluster) -> SlotStatus:
    """The slot as the server sees it, and how far the snapshots of its tables are."""
    catalog = open_catalog(task.address)
    with catalog.connection:
        slot = Slot.of(catalog, task.slot)
    ledger = TopicLedger(task.config, cluster, writer_name(task))
    entry = ledger.last() if ledger.topic in cluster.partitions([ledger.topic]) else None
    tables = {} if entry is None else entry.position.get("tables", {})
    return SlotStatus(
        database=task.shown,
        slot=task.slot,
        publication=task.publication,
        exists=slot is not None,
        is_active=slot is not None and slot.is_active,
        retained=None if slot is None else slot.retained,
        behind=None if slot is None else slot.behind,
        wal_status=None if slot is None else slot.wal_status,
        tables={str(one.table): _snapshot_text(tables.get(str(one.table), {"rows": 0})) for one in task.tables},
    )


def _snapshot_text(state: Any) -> str:
    return "streaming" if state is None else f"snapshot, {state['rows']:,} rows"


def drop_capture(task: Task, cluster: Cluster) -> list[str]:
    """Drop the slot, the publication and the ledger; returns what was dropped. The topics of the tables stay."""
    dropped = []
    catalog = open_catalog(task.address)
    with catalog.connection:
        if drop_slot(catalog, task):
            dropped.append(f"slot {task.slot}")
        published = catalog.connection.execute(
            "SELECT 1 FROM pg_publication WHERE pubname = %s", (task.publication,)
        ).fetchone()
        if published is not None:
            with explained(task.address, f"drop the publication {task.publication!r}"):
                catalog.connection.execute(f"DROP PUBLICATION {_quoted(task.publication)}".encode())
            dropped.append(f"publication {task.publication}")
    ledger = TopicLedger(task.config, cluster, writer_name(task)).topic
    if ledger in cluster.partitions([ledger]):
        for outcome in delete_topics(cluster, [ledger]):
            if outcome.error is not None:
                raise outcome.error
        dropped.append(f"ledger {ledger}")
    return dropped


def _check_conditions(catalog: Catalog, task: Task, tables: Sequence[CatalogTable]) -> None:
    """A condition on columns that the log lacks of old rows would make PostgreSQL refuse every update of the table."""
    for one, table in zip(task.tables, tables, strict=True):
        if one.where is None:
            continue
        columns = [name for (name,) in catalog.connection.execute(CONDITION_COLUMNS, (task.publication, table.id))]
        if not table.identifies(columns):
            raise CaptureError(
                f"where={one.where!r} needs columns that the log does not have of old rows of {one.table}",
                next_step=f"type: ALTER TABLE {one.table.quoted} REPLICA IDENTITY FULL",
            )


def _entry(one: TableTask) -> str:
    return one.table.quoted if one.where is None else f"{one.table.quoted} WHERE ({one.where})"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def _told(task: Task, statement: str, what: str) -> Iterator[str]:
    """Run a statement; if it is refused, the message has it for somebody who may."""
    try:
        yield statement
    except psycopg.errors.InsufficientPrivilege as error:
        raise CaptureError(
            f"the role has no permission to create or change {what} in {task.shown}: {error.diag.message_primary}",
            next_step=f"type, as the owner of the table or a superuser: {statement}",
        ) from error
    except (psycopg.errors.SyntaxError, psycopg.errors.UndefinedColumn, psycopg.errors.InvalidParameterValue,
            psycopg.errors.DatatypeMismatch, psycopg.errors.FeatureNotSupported) as error:  # fmt: skip
        raise CaptureError(
            f"{task.shown} does not accept: {statement}: {error.diag.message_primary}",
            next_step="correct where= of app.capture()",
        ) from error
    except psycopg.Error as error:
        raise _postgres_error(error, task, f"create or change {what}") from error


def _postgres_error(error: psycopg.Error, task: Task, what: str) -> CaptureError | PostgresUnavailable:
    said = error.diag.message_primary or str(error).strip()
    if isinstance(error, psycopg.OperationalError):
        return PostgresUnavailable(f"{task.shown} could not {what}: {said}")
    return CaptureError(f"{task.shown} could not {what}: {said}")


def _one(cursor: psycopg.Cursor[Any]) -> Any:
    row = cursor.fetchone()
    assert row is not None
    return row


def system_identifier(catalog: Catalog) -> str:
    """The identity of a server, which a copy by backup keeps and a new one does not have."""
    return str(_one(catalog.connection.execute("SELECT system_identifier FROM pg_control_system()"))[0])


def end_of_log(catalog: Catalog) -> int:
    return int(_one(catalog.connection.execute("SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint"))[0])
