"""Reading one's own writes: a receipt, and a view that covers it."""

import threading
import time
from typing import Any, NamedTuple

import pytest

import headrace as hr
from headrace import InputError, NotCovered, TableError
from tests.tables.conftest import MakeReader, MakeWriter
from tests.tables.rows import batch, pairs


class Receipt(NamedTuple):
    topic: str
    partition: int
    offset: int


def test_get_waits_until_the_view_covers_the_receipt(writer_of: MakeWriter, reader_of: MakeReader) -> None:
    writer = writer_of()
    writer.write("q", 0, {"t": {0: 1, 1: 7}}, [pairs(a=1)])
    reader = reader_of()
    assert reader.get("a", after=Receipt("t", 0, 0)) == {"k": "a", "v": 1}
    assert reader.get("a", after=Receipt("t", 1, 6)) == {"k": "a", "v": 1}

    def later() -> None:
        time.sleep(0.3)
        writer.write("q", 1, {"t": {0: 2, 1: 7}}, [pairs(a=2)])

    thread = threading.Thread(target=later)
    thread.start()
    assert reader.get("a", after=Receipt("t", 0, 1), timeout=10) == {"k": "a", "v": 2}
    thread.join()
    assert reader.get("a", after=[Receipt("t", 0, 1), Receipt("t", 1, 6)]) == {"k": "a", "v": 2}


def test_what_is_not_covered_in_time_says_how_far_it_got(writer_of: MakeWriter, reader_of: MakeReader) -> None:
    reader = reader_of()
    with pytest.raises(NotCovered, match="has no batch yet"):
        reader.get("a", after=Receipt("t", 0, 0), timeout=0)
    writer_of().write("q", 3, {"t": {0: 5}}, [])
    with pytest.raises(NotCovered, match=r"not reach t\[0\] offset 5 within 0.05 s.*before 5, with batch 3"):
        reader.get("a", after=Receipt("t", 0, 5), timeout=0.05)
    with pytest.raises(NotCovered, match="of that partition before 0"):
        reader.get("a", after=Receipt("t", 9, 0), timeout=0)


def test_a_topic_the_view_does_not_read_is_told_at_once(writer_of: MakeWriter, reader_of: MakeReader) -> None:
    writer_of().write("q", 0, {"bursts": {0: 5}}, [])
    with pytest.raises(InputError, match=r"does not read topic 'payments'.*'bursts'"):
        reader_of().get("a", after=Receipt("payments", 0, 0))


def test_what_is_no_receipt_is_told(reader_of: MakeReader) -> None:
    for wrong in ("orders", [5]):
        with pytest.raises(InputError, match=r"after: .* is not a receipt; pass what producer.send"):
            reader_of().get("a", after=wrong)  # type: ignore[arg-type]


def test_a_source_that_a_batch_says_nothing_of_stays_covered(writer_of: MakeWriter, reader_of: MakeReader) -> None:
    writer = writer_of()
    writer.write("q", 0, {"a": {0: 5}, "b": {0: 1}}, [])
    writer.write("q", 1, {"b": {0: 2}}, [])
    coverage = reader_of().coverage()
    assert coverage is not None
    assert coverage.offsets == {"a": {"0": 5}, "b": {"0": 2}}


def test_a_batch_that_was_only_claimed_covers_nothing(writer_of: MakeWriter, reader_of: MakeReader) -> None:
    writer = writer_of()
    writer.write("q", 0, {"t": {0: 1}}, [pairs(a=1)])
    writer.claim("q", 1)
    with pytest.raises(NotCovered):
        reader_of().get("a", after=Receipt("t", 0, 1), timeout=0)


def test_the_coverage_is_that_of_the_query_that_writes_now(writer_of: MakeWriter, reader_of: MakeReader) -> None:
    writer_of().write("old", 9, {"t": {0: 100}}, [])
    writer_of().write("new", 0, {"t": {0: 3}}, [])
    with pytest.raises(NotCovered):
        reader_of().get("a", after=Receipt("t", 0, 50), timeout=0)


def test_rows_by_mapping_and_by_condition(writer_of: MakeWriter, reader_of: MakeReader) -> None:
    writer_of().write("q", 0, {}, [pairs(a=1, b=2, c=3), batch([{"k": "n", "_deleted": False, "v": None}], COLUMNS)])
    reader = reader_of()
    assert len(reader.rows()) == 4
    assert reader.rows({"v": 2}) == [{"k": "b", "v": 2}]
    assert reader.rows({"v": None}) == [{"k": "n", "v": None}]
    assert sorted(row["k"] for row in reader.rows("v >= %s", [2])) == ["b", "c"]
    assert reader.rows("k = %(key)s", {"key": "a"}) == [{"k": "a", "v": 1}]
    with pytest.raises(TableError, match="nope"):
        reader.rows("nope = 1")
    assert len(reader.rows()) == 4


COLUMNS = "k STRING, v BIGINT, _deleted BOOLEAN"


def test_keys_of_several_columns(writer_of: MakeWriter, reader_of: MakeReader) -> None:
    columns = "card STRING, day INT, total BIGINT"
    rows = [{"card": "x", "day": 1, "total": 5}, {"card": "x", "day": 2, "total": 6}]
    writer_of(columns, ("card", "day")).write("q", 0, {}, [batch(rows, columns)])
    reader = reader_of(("card", "day"))
    assert reader.get(("x", 2)) == rows[1]
    assert reader.get({"day": 1, "card": "x"}) == rows[0]
    assert reader.get(("x", 3)) is None
    with pytest.raises(InputError, match=r"is \(card, day\), but 1 of it were given"):
        reader.get("x")
    with pytest.raises(InputError, match=r"is \(card, day\), not \(card\)"):
        reader.get({"card": "x"})


def test_a_view_nobody_has_written_yet(reader_of: MakeReader) -> None:
    with pytest.raises(TableError, match=r"does not exist yet.*headrace run"):
        reader_of().rows()


def test_rows_of_an_app_s_view_wait_for_the_receipt_as_well(
    writer_of: MakeWriter, postgres_dsn: str, schema_name: str
) -> None:
    app = hr.App(schema_name)
    app.topic("t", "k STRING, v BIGINT", key="k")

    @app.view(key="k")
    def spend(t: Any) -> Any:
        return t

    writer = writer_of()
    writer.write("q", 0, {"t": {0: 1}}, [pairs(a=1)])
    assert spend.rows({"k": "a"}, after=hr.Receipt("t", 0, 0), postgres=postgres_dsn) == [{"k": "a", "v": 1}]
    with pytest.raises(NotCovered, match=r"not reach t\[0\] offset 1 within 0 s"):
        spend.rows(after=[hr.Receipt("t", 0, 0), hr.Receipt("t", 0, 1)], timeout=0, postgres=postgres_dsn)
    with pytest.raises(NotCovered):
        spend.get("b", after=hr.Receipt("t", 0, 1), timeout=0, postgres=postgres_dsn)
    writer.write("q", 1, {"t": {0: 2}}, [pairs(b=2)])
    assert len(spend.rows(after=hr.Receipt("t", 0, 1), postgres=postgres_dsn)) == 2


def test_a_column_that_the_view_does_not_have_is_told_with_the_one_that_was_meant(
    writer_of: MakeWriter, reader_of: MakeReader
) -> None:
    writer_of().write("q", 0, {"t": {0: 1}}, [pairs(a=1)])
    reader = reader_of()
    with pytest.raises(InputError, match=r"has no column 'kk'; did you mean 'k'\?"):
        reader.rows({"v": 1, "kk": "a"})
    with pytest.raises(InputError, match=r"has no column 'colour'; known here: k, v$"):
        reader.rows({"colour": "a"})
    with pytest.raises(TableError, match=r'does not have: column "kk" does not exist; its columns are k, v$'):
        reader.rows("kk = %s", ["a"])
    assert reader.rows({"k": "a"}) == [{"k": "a", "v": 1}]
