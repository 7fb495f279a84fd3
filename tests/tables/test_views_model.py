"""A view held to a dict: random batches, written, cut off, replayed and fought over, each in effect exactly once."""

import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headrace import PostgresUnavailable, ViewFenced
from headrace.tables import ViewReader, ViewWriter
from headrace.topology import Schema
from tests.tables.rows import batch

COLUMNS = "k STRING, v BIGINT, o INT"
ARRIVING = f"{COLUMNS}, _deleted BOOLEAN"
ROW = st.fixed_dictionaries(
    {
        "k": st.sampled_from("abcde"),
        "v": st.integers(0, 1000),
        "o": st.none() | st.integers(0, 3),
        "_deleted": st.booleans() | st.none(),
    }
)
BATCH = st.lists(st.lists(ROW, max_size=4), max_size=3)
CUTS = st.sampled_from(["rows fail", "connection dies", "connection dies at the end"])


class Crash(Exception):
    pass


class ViewMachine(RuleBasedStateMachine):
    """Spark, as the view sees it: a batch is written until Spark has noted it, then the next one comes."""

    dsn = ""

    @initialize(ordered=st.booleans())
    def start(self, ordered: bool) -> None:
        self.order_by = ("o",) if ordered else ()
        self.newest: dict[str, int] = {}
        self.schema_name = f"model_{uuid.uuid4().hex[:12]}"
        self.model: dict[str, int] = {}
        self.offset = 0
        self.batch = 0
        self.committed = False
        self.pending: list[list[dict[str, Any]]] | None = None
        self.zombies: list[ViewWriter] = []
        self.reader = ViewReader(self.dsn, self.schema_name, "v", ("k",))
        self.writer = self.new_writer()

    def new_writer(self) -> ViewWriter:
        writer = ViewWriter(self.dsn, self.schema_name, "v", Schema.of(COLUMNS), ("k",), self.order_by)
        writer.prepare()
        return writer

    @rule(rows=BATCH)
    def write(self, rows: list[list[dict[str, Any]]]) -> None:
        """The batch at hand; when it is a replay its rows may be others, as those of a random node are."""
        written = self.writer.write("q", self.batch, self.offsets(), self.arrow(rows))
        assert written is not self.committed
        if written:
            self.apply(rows)

    @rule(rows=BATCH, cut=CUTS, at=st.integers(0, 3))
    def cut_off(self, rows: list[list[dict[str, Any]]], cut: str, at: int) -> None:
        try:
            assert not self.writer.write("q", self.batch, self.offsets(), self.cut(rows, cut, at))
            assert self.committed
        except (Crash, PostgresUnavailable):
            assert not self.committed

    @precondition(lambda self: self.committed)
    @rule()
    def spark_commits(self) -> None:
        self.batch += 1
        self.committed = False

    @rule()
    def restart(self) -> None:
        self.zombies.append(self.writer)
        self.writer = self.new_writer()
        last = self.writer.last_batch("q")
        assert last == (self.batch if self.committed else self.batch - 1 if self.batch else None)

    @precondition(lambda self: self.zombies)
    @rule(rows=BATCH, ahead=st.integers(-1, 2))
    def zombie_writes(self, rows: list[list[dict[str, Any]]], ahead: int) -> None:
        with pytest.raises(ViewFenced):
            self.zombies[-1].write("q", max(self.batch + ahead, 0), self.offsets(), self.arrow(rows))

    @invariant()
    def the_view_is_the_dict(self) -> None:
        if self.model or self.reader.coverage():
            assert {row["k"]: row["v"] for row in self.reader.rows()} == self.model

    @invariant()
    def the_offsets_are_those_of_the_rows(self) -> None:
        coverage = self.reader.coverage()
        assert (coverage.offsets if coverage else {}) == ({"t": {"0": self.offset}} if self.offset else {})

    def teardown(self) -> None:
        for writer in (*getattr(self, "zombies", ()), *([self.writer] if hasattr(self, "writer") else ())):
            writer.close()
        if hasattr(self, "reader"):
            self.reader.close()

    def offsets(self) -> dict[str, dict[int, int]]:
        return {"t": {0: (self.batch + 1) * 10}}

    def apply(self, rows: list[list[dict[str, Any]]]) -> None:
        # Row by row, as if each were a batch of its own: how rows are spread over batches makes no difference.
        for row in (row for part in rows for row in part):
            key, order = row["k"], -1 if row["o"] is None else row["o"]
            is_tombstone = row["_deleted"] and row["o"] is None
            if self.order_by and not is_tombstone:
                if order < self.newest.get(key, -1):
                    continue
                self.newest[key] = order
            if row["_deleted"]:
                self.model.pop(key, None)
            else:
                self.model[key] = row["v"]
        self.offset = (self.batch + 1) * 10
        self.committed = True

    def arrow(self, rows: list[list[dict[str, Any]]]) -> list[Any]:
        # Every part with all columns, as those of a DataFrame have.
        return [batch([dict.fromkeys(("k", "v", "o", "_deleted")), *part], ARRIVING)[1:] for part in rows]

    def cut(self, rows: list[list[dict[str, Any]]], cut: str, at: int) -> Iterator[Any]:
        for index, part in enumerate(self.arrow(rows)):
            if index == at and cut == "rows fail":
                raise Crash
            if index == at and cut == "connection dies":
                self.kill_connection()
            yield part
        if cut == "rows fail":
            raise Crash
        self.kill_connection()

    def kill_connection(self) -> None:
        assert self.writer._connection is not None
        with psycopg.connect(self.dsn, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", [self.writer._connection.info.backend_pid])


def test_exactly_once_whatever_happens(postgres_dsn: str) -> None:
    ViewMachine.dsn = postgres_dsn
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        ViewMachine,
        settings=settings(
            max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
