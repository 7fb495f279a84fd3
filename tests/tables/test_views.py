"""Writing views: batches once, the last row of a key, tables that fit, and one owner at a time."""

import time

import psycopg
import pytest

from headrace import TableError, ViewChanged, ViewFenced
from headrace.tables import ViewWriter
from headrace.topology import Schema
from tests.tables.conftest import MakeReader, MakeWriter
from tests.tables.rows import batch, pairs


def contents(reader_of: MakeReader) -> dict[str, int | None]:
    return {row["k"]: row["v"] for row in reader_of().rows()}


def test_a_batch_is_written_once(writer_of: MakeWriter, reader_of: MakeReader) -> None:
    writer = writer_of()
    assert writer.last_batch("q") is None
    assert writer.write("q", 0, {"t": {0: 2}}, [pairs(a=1, b=2)])
    assert writer.last_batch("q") == 0
    assert not writer.write("q", 0, {"t": {0: 2}}, [pairs(a=100)])
    assert contents(reader_of) == {"a": 1, "b": 2}
    assert writer.write("q", 1, {"t": {0: 4}}, [pairs(a=3), pairs(c=4)])
    assert not writer.write("q", 0, {"t": {0: 2}}, [pairs(a=100)])
    assert contents(reader_of) == {"a": 3, "b": 2, "c": 4}


def test_a_batch_that_is_there_is_not_even_computed(writer_of: MakeWriter) -> None:
    writer = writer_of()
    writer.write("q", 0, {}, [pairs(a=1)])

    def rows() -> object:
        raise AssertionError("nobody should ask for them")
        yield

    assert not writer.write("q", 0, {}, rows())  # type: ignore[arg-type]


def test_an_empty_batch_still_moves_the_ledger(writer_of: MakeWriter, reader_of: MakeReader) -> None:
    writer = writer_of()
    assert writer.write("q", 0, {"t": {0: 5}}, [])
    assert writer.write("q", 1, {"t": {0: 9}}, [batch([{"k": "a", "v": 1}])[:0]])
    coverage = reader_of().coverage()
    assert coverage is not None
    assert (coverage.batch, coverage.offsets) == (1, {"t": {"0": 9}})


def test_the_last_row_of_a_key_wins(writer_of: MakeWriter, reader_of: MakeReader) -> None:
    writer = writer_of()
    writer.write("q", 0, {}, [batch([{"k": "a", "v": 1}, {"k": "a", "v": 2}]), batch([{"k": "a", "v": 3}])])
    assert contents(reader_of) == {"a": 3}


def test_deleting_inserting_and_deleting_again(writer_of: MakeWriter, reader_of: MakeReader) -> None:
    writer = writer_of()
    writer.write("q", 0, {}, [pairs(a=1, b=2)])
    writer.write("q", 1, {}, [pairs(a=None, c=3, d=None)])
    assert contents(reader_of) == {"b": 2, "c": 3}
    writer.write("q", 2, {}, [pairs(a=4), pairs(b=None), pairs(b=5), pairs(c=6), pairs(c=None)])
    assert contents(reader_of) == {"a": 4, "b": 5}


def test_a_view_of_nothing_but_its_key(writer_of: MakeWriter, reader_of: MakeReader) -> None:
    writer = writer_of("k STRING")
    writer.write("q", 0, {}, [batch([{"k": "a"}, {"k": "b"}], "k STRING")])
    writer.write("q", 1, {}, [batch([{"k": "b"}], "k STRING")])
    assert sorted(row["k"] for row in reader_of().rows()) == ["a", "b"]


def test_names_that_need_quotes(postgres_dsn: str, schema_name: str) -> None:
    columns = 'Select STRING, `a "b" %s` BIGINT, `Größe` STRING'
    writer = ViewWriter(postgres_dsn, f"{schema_name}-x", "Order", Schema.of(columns), ("Select", 'a "b" %s'))
    writer.prepare()
    row = {"Select": "x", 'a "b" %s': 1, "Größe": "groß"}
    assert writer.write("q", 0, {}, [batch([row], columns)])
    assert writer.write("q", 1, {}, [batch([row | {"Größe": "klein"}], columns)])
    with psycopg.connect(postgres_dsn) as connection:
        assert connection.execute(f'SELECT * FROM "{schema_name}-x"."Order"').fetchall() == [("x", 1, "klein")]
    writer.close()


@pytest.mark.parametrize(
    ("schema", "columns", "key", "complaint"),
    [
        ("pg_app", "k STRING", "k", "reserves the schema 'pg_app'"),
        ("headrace", "k STRING", "k", "is reserved for the ledger"),
        ("app", "k STRING, xmin INT", "k", "column name 'xmin' is reserved"),
        ("app", "k STRING, _order INT", "k", "column name '_order' is reserved"),
        ("app", f"k STRING, {'x' * 64} INT", "k", "limit of 63 bytes"),
        ("app", "k STRING", "id", "the key 'id' is not among"),
    ],
)
def test_what_postgresql_cannot_name(schema: str, columns: str, key: str, complaint: str) -> None:
    from headrace import InputError

    with pytest.raises(InputError, match=complaint):
        ViewWriter("postgresql://127.0.0.1:1/x", schema, "spend", Schema.of(columns), (key,))


def test_columns_that_came_are_added(writer_of: MakeWriter, reader_of: MakeReader) -> None:
    writer_of().write("q", 0, {}, [pairs(a=1)])
    wider = "k STRING, v BIGINT, note STRING NOT NULL"
    writer_of(wider).write("q", 1, {}, [batch([{"k": "b", "v": 2, "note": "new"}], wider)])
    rows = sorted(reader_of().rows(), key=lambda row: str(row["k"]))
    assert rows == [{"k": "a", "v": 1, "note": None}, {"k": "b", "v": 2, "note": "new"}]


@pytest.mark.parametrize(
    ("columns", "key", "complaint", "typed"),
    [
        (
            "k STRING, v STRING",
            ("k",),
            "column 'v' is bigint in the table and text in the view",
            'ALTER COLUMN "v" TYPE text',
        ),
        ("k STRING", ("k",), "column 'v' is in the table and not in the view", 'DROP COLUMN "v"'),
        ("k STRING, v BIGINT", ("v",), "the key is (k) in the table and (v) in the view", "--reset spend"),
        (
            "k STRING, v BIGINT, w INT",
            ("k", "w"),
            "the key is (k) in the table and (k, w) in the view",
            "--reset spend",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused_until_it_is_reset(
    writer_of: MakeWriter, reader_of: MakeReader, columns: str, key: tuple[str, ...], complaint: str, typed: str
) -> None:
    writer_of().write("q", 0, {}, [pairs(a=1)])
    changed = writer_of(columns, key, prepare=False)
    with pytest.raises(ViewChanged) as refused:
        changed.prepare()
    assert complaint in str(refused.value)
    assert typed in str(refused.value)
    assert contents(reader_of) == {"a": 1}
    changed.reset()
    changed.prepare()
    assert reader_of().rows() == []
    assert changed.last_batch("q") is None


def test_a_reset_that_fits_keeps_the_table_itself(
    writer_of: MakeWriter, reader_of: MakeReader, postgres_dsn: str, schema_name: str
) -> None:
    writer = writer_of()
    writer.write("q", 0, {}, [pairs(a=1)])
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute(f'CREATE INDEX kept ON "{schema_name}".spend (v)')
    writer.reset()
    writer.prepare()
    assert contents(reader_of) == {}
    assert writer.last_batch("q") is None
    with psycopg.connect(postgres_dsn) as connection:
        found = connection.execute(
            "SELECT 1 FROM pg_indexes WHERE schemaname = %s AND indexname = 'kept'", [schema_name]
        )
        assert found.fetchone()


def test_something_else_of_that_name_is_not_touched(writer_of: MakeWriter, postgres_dsn: str, schema_name: str) -> None:
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute(f'CREATE SCHEMA "{schema_name}"')
        connection.execute(f'CREATE VIEW "{schema_name}".spend AS SELECT 1 AS k')
    with pytest.raises(ViewChanged, match="not a table"):
        writer_of()


def test_whoever_had_the_view_before_is_fenced(writer_of: MakeWriter, reader_of: MakeReader) -> None:
    old = writer_of()
    old.write("q", 0, {}, [pairs(a=1)])
    new = writer_of()
    with pytest.raises(ViewFenced, match="taken over by"):
        old.write("q", 1, {}, [pairs(a=2)])
    with pytest.raises(ViewFenced):
        old.claim("q", 1)
    assert new.last_batch("q") == 0
    assert new.write("q", 1, {}, [pairs(a=3)])
    assert contents(reader_of) == {"a": 3}


def test_a_predecessor_that_sleeps_in_the_middle_is_ended(
    writer_of: MakeWriter, reader_of: MakeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.tables.views.PREDECESSOR_SECONDS", 0.2)
    old = writer_of()
    successors = []

    def rows() -> object:
        yield pairs(a=1)
        started = time.monotonic()
        successors.append(writer_of())
        assert time.monotonic() - started < 10
        yield pairs(b=2)

    with pytest.raises(TableError):
        old.write("q", 0, {}, rows())  # type: ignore[arg-type]
    assert contents(reader_of) == {}
    with pytest.raises(ViewFenced):
        old.write("q", 0, {}, [pairs(a=1)])
    assert successors[0].write("q", 0, {}, [pairs(a=9)])
    assert contents(reader_of) == {"a": 9}


def test_another_checkpoint_starts_over_and_the_old_one_is_remembered(writer_of: MakeWriter) -> None:
    writer = writer_of()
    writer.write("old", 5, {}, [pairs(a=1)])
    assert writer.last_batch("new") is None
    assert writer.write("new", 0, {}, [pairs(a=2)])
    assert writer.last_batch("old") == 5


def test_at_most_once_a_batch_is_claimed_before_it_is_written(writer_of: MakeWriter, reader_of: MakeReader) -> None:
    writer = writer_of()
    assert writer.claim("q", 0)
    assert writer.write("q", 0, {"t": {0: 1}}, [pairs(a=1)], claimed=True)
    assert writer.claim("q", 1)
    # Here the process dies, and its successor does not write the batch again.
    successor = writer_of()
    assert not successor.claim("q", 1)
    assert successor.claim("q", 2)
    assert successor.write("q", 2, {"t": {0: 3}}, [pairs(c=3)], claimed=True)
    assert contents(reader_of) == {"a": 1, "c": 3}


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([{"k": None, "v": 1}, {"k": "a", "v": 2}], "batch 4: 1 rows have a null in the key (k)"),
        ([{"k": "a\0b", "v": 1}], "batch 4: column 'k' contains the NUL character"),
        ([{"k": "a"}], "batch 4: the rows lack v"),
    ],
)
def test_rows_that_no_table_can_hold(
    writer_of: MakeWriter, reader_of: MakeReader, rows: list[dict[str, object]], complaint: str
) -> None:
    writer = writer_of()
    with pytest.raises(TableError) as refused:
        writer.write("q", 4, {}, [batch(rows)])
    assert complaint in str(refused.value)
    assert contents(reader_of) == {}
    assert writer.write("q", 4, {}, [pairs(z=1)])


def test_what_fails_upstream_leaves_nothing(writer_of: MakeWriter, reader_of: MakeReader) -> None:
    writer = writer_of()

    def rows() -> object:
        yield pairs(a=1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        writer.write("q", 0, {}, rows())  # type: ignore[arg-type]
    assert contents(reader_of) == {}
    assert writer.last_batch("q") is None


def test_a_role_without_rights_is_told_so(postgres_dsn: str, schema_name: str) -> None:
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute(f"CREATE ROLE \"{schema_name}\" LOGIN PASSWORD 'x'")
    limited = postgres_dsn.replace("headrace@", f"{schema_name}:x@")
    writer = ViewWriter(limited, schema_name, "spend", Schema.of("k STRING"), ("k",))
    with pytest.raises(TableError, match=r"permission denied.*grant"):
        writer.prepare()
