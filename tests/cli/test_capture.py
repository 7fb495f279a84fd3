"""`headrace capture`: an app's captured tables into topics, their status, and their end."""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.capture.capturing import until
from tests.conftest import Headrace

APP = """
import headrace as hr

app = hr.App("{name}")
orders = app.capture({dsn!r}, "{name}.orders")
"""


@pytest.fixture
def name(postgres_dsn: str, tmp_path: Path) -> Iterator[str]:
    """An app that captures a table of two rows."""
    name = f"shop{uuid.uuid4().hex[:8]}"
    (tmp_path / "shop.py").write_text(APP.format(name=name, dsn=postgres_dsn))
    with psycopg.connect(postgres_dsn, autocommit=True) as database:
        database.execute(f"CREATE SCHEMA {name}")
        database.execute(f"CREATE TABLE {name}.orders (id int PRIMARY KEY, item text)")
        database.execute(f"INSERT INTO {name}.orders VALUES (1, 'a'), (2, 'b')")
        try:
            yield name
        finally:
            database.execute(f"DROP SCHEMA {name} CASCADE")


def test_capture_status_and_drop(headrace: Headrace, name: str, postgres_dsn: str) -> None:
    capture = headrace.start("capture", "shop.py")
    try:

        def states() -> dict[str, str]:
            (found,) = json.loads(headrace.ok("capture", "status", "shop.py", "--json"))
            tables: dict[str, str] = found["tables"]
            return tables if found["is_active"] else {}

        until(lambda: states() == {f"{name}.orders": "streaming"}, 60)
        assert "streaming" in headrace.ok("capture", "status", "shop.py")
    finally:
        capture.terminate()
        said = capture.communicate(timeout=30)[0]
    assert capture.returncode == 0
    assert f"the snapshot of {name}.orders is complete: 2 rows" in said
    printed = headrace.ok("consume", f"{name}.{name}.orders", "--from", "beginning", "--exit-at-end")
    assert [json.loads(line)["op"] for line in printed.splitlines()] == ["r", "r"]
    again = headrace.ok("capture", "shop.py", "--snapshot", f"again={name}.orders", "--seconds", "8")
    assert "is complete: 2 rows" in again
    assert "add --yes" in headrace.fails("capture", "drop", "shop.py")
    assert f"dropped slot headrace_{name}" in headrace.ok("capture", "drop", "shop.py", "--yes")
    with psycopg.connect(postgres_dsn) as database:
        assert database.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name ~ %s", (name,)).fetchone() is None
    assert "no slot" in headrace.ok("capture", "status", "shop.py")


def test_it_is_killed_with_its_process(headrace: Headrace, name: str, postgres_dsn: str) -> None:
    capture = headrace.start("capture", "shop.py")
    with psycopg.connect(postgres_dsn, autocommit=True) as database:
        slot = "SELECT active FROM pg_replication_slots WHERE slot_name ~ %s"
        until(lambda: database.execute(slot, (name,)).fetchone() == (True,), 60)
        os.kill(capture.pid, signal.SIGKILL)
        capture.communicate(timeout=10)
        until(lambda: database.execute(slot, (name,)).fetchone() == (False,), 30)
    headrace.ok("capture", "drop", "shop.py", "--yes")


def test_wrong_words(headrace: Headrace, name: str, tmp_path: Path) -> None:
    (tmp_path / "none.py").write_text('import headrace as hr\napp = hr.App("none")\napp.topic("x", "id STRING")\n')
    assert "captures no table" in headrace.fails("capture", "none.py", code=2)
    assert "give a file, or status or drop and a file" in headrace.fails("capture", "status", code=2)
    assert f"the tables are: {name}.orders" in headrace.fails("capture", "shop.py", "--snapshot", "again=x.y", code=2)
    assert "'sometimes' is unknown" in headrace.fails("capture", "shop.py", "--snapshot", "sometimes", code=2)
