"""Captured tables get the columns and the key that their database has, where the declaration leaves them out."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import headrace as hr
from headrace.config import RunConfig
from headrace.services import with_captures_described
from tests.conftest import Headrace

UNREACHABLE = "postgresql://u:s3cret@127.0.0.1:1/db"
APP = """
import headrace as hr

app = hr.App("shop")
app.capture({address!r}, {table!r})


@app.view(key="id")
def totals(orders):
    return orders.select("id", "total")
"""


@pytest.fixture
def schema(postgres_dsn: str) -> Iterator[str]:
    name = f"shop_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres_dsn, autocommit=True) as database:
        database.execute(f"CREATE SCHEMA {name}")
        database.execute(
            f"CREATE TABLE {name}.orders (id bigint PRIMARY KEY, email text, total numeric(12,2), made timestamptz)"
        )
        database.execute(f"CREATE TABLE {name}.keyless (id bigint)")
        yield name
        database.execute(f"DROP SCHEMA {name} CASCADE")


def app_with(address: str | None, table: str, **options: Any) -> hr.App:
    app = hr.App("shop")
    app.capture(address, table, name="orders", **options)

    @app.view(key="id")
    def latest(orders: Any) -> Any:
        return orders

    return app


def test_columns_and_key_are_read_from_the_database(postgres_dsn: str, schema: str) -> None:
    app = app_with(postgres_dsn, f"{schema}.orders", mask={"email": "hash"})
    topology = app.topology()
    complete = with_captures_described(topology, RunConfig())
    orders = complete.source(complete.nodes["orders"])
    assert orders.schema.ddl == "id BIGINT, email STRING, total DECIMAL(12,2), made TIMESTAMP"
    assert (orders.key, orders.is_described) == (("id",), True)
    assert [feed for query in complete.queries for feed in complete.feeds(query)] == [orders]
    # The declaration itself is as it was.
    assert not topology.source(topology.nodes["orders"]).is_described


def test_without_an_address_it_is_the_database_of_the_app(postgres_dsn: str, schema: str) -> None:
    complete = with_captures_described(app_with(None, f"{schema}.orders").topology(), RunConfig(postgres=postgres_dsn))
    assert complete.source(complete.nodes["orders"]).key == ("id",)


def test_what_is_declared_needs_no_database() -> None:
    topology = app_with(UNREACHABLE, "orders", schema="id BIGINT", key="id").topology()
    assert with_captures_described(topology, RunConfig()) is topology


def test_a_table_without_a_key_is_told_at_the_declaration(postgres_dsn: str, schema: str) -> None:
    with pytest.raises(hr.Error, match="primary key"):
        with_captures_described(app_with(postgres_dsn, f"{schema}.keyless").topology(), RunConfig())


def test_a_database_that_does_not_answer_is_told_without_its_secrets() -> None:
    topology = app_with(UNREACHABLE, "orders").topology()
    with pytest.raises(hr.CaptureError, match=r"columns of the table public\.orders cannot be read.*schema=") as caught:
        with_captures_described(topology, RunConfig())
    assert "s3cret" not in str(caught.value)


def test_without_any_database_it_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(hr.CaptureError, match=r"no PostgreSQL address is given.*schema= and key="):
        with_captures_described(app_with(None, "orders").topology(), RunConfig(home=tmp_path))


@pytest.mark.timeout(120)
def test_check_plans_with_the_columns_of_the_database(
    headrace: Headrace, postgres_dsn: str, schema: str, tmp_path: Path
) -> None:
    file = tmp_path / "shop.py"
    file.write_text(APP.format(address=postgres_dsn, table=f"{schema}.orders"))
    said = headrace.ok("check", str(file), "--plan")
    assert "id BIGINT, total DECIMAL(12,2)" in said
    file.write_text(APP.format(address=UNREACHABLE, table=f"{schema}.orders"))
    said = headrace.fails("check", str(file), "--plan")
    assert "cannot be read from its database" in said
    assert "s3cret" not in said
