"""Captured tables as declarations: no side effects, no secrets shown, one slot per address."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.topology import Capture, Database, Mask, Snapshot, TableName, as_mermaid, as_text, described
from headrace.topology.captures import captured_databases
from headrace.topology.databases import OnLagLimit

ADDRESS = "postgresql://shop:s3cret@db.example:5433/shop"
NAMES = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), min_size=1)


def app_with(**options: Any) -> tuple[hr.App, Capture]:
    app = hr.App("shop")
    return app, app.capture(ADDRESS, "public.orders", **options)


def messages(app: hr.App) -> list[str]:
    return [problem.message for problem in app.problems()]


def test_a_capture_is_a_table_named_after_the_table_it_captures() -> None:
    app, orders = app_with()
    assert (orders.name, orders.topic_name, orders.table) == (
        "orders",
        "shop.public.orders",
        TableName("public", "orders"),
    )
    assert orders.is_table
    assert orders.is_captured
    assert orders.has_topic
    assert not orders.is_input
    assert orders.snapshot is Snapshot.INITIAL
    assert not orders.is_described
    assert app.problems() == ()


def test_name_and_topic_can_be_given() -> None:
    app = hr.App("shop", prefix="test-")
    assert app.capture(ADDRESS, "orders").topic_name == "test-public.orders"
    assert app.capture(ADDRESS, '"Sales"."Größe"', name="sizes").topic_name == "test-Sales.Gr__e"
    other = app.capture(ADDRESS, '"Sales"."Order lines"', name="lines", topic="sales.lines")
    assert (other.name, other.topic_name, str(other.table)) == ("lines", "sales.lines", "Sales.Order lines")
    assert other.table.quoted == '"Sales"."Order lines"'
    assert app.problems() == ()


def test_captures_of_one_address_share_a_slot_and_a_publication() -> None:
    app = hr.App("Shop-1")
    orders, lines = app.capture(ADDRESS, "orders"), app.capture(ADDRESS, "lines")
    other = app.capture("postgresql://db.example/stock", "items")
    apart = app.capture(hr.database(ADDRESS, slot="audit"), "audit")
    own = app.capture(None, "outbox")
    assert captured_databases(app.nodes) == {
        orders.database: (orders, lines), other.database: (other,), apart.database: (apart,), own.database: (own,)
    }  # fmt: skip
    assert orders.database.slot == orders.database.publication == "headrace_shop_1_shop"
    assert other.database.slot == "headrace_shop_1_stock"
    assert own.database.slot == "headrace_shop_1"
    assert (apart.database.slot, apart.database.publication) == ("audit", "audit")


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        (ADDRESS, "postgresql://db.example:5433/shop"),
        ("postgres://u@[::1]:5432/db?sslmode=require&password=s3cret", "postgresql://[::1]:5432/db"),
        ("postgresql://u:s3cret@/db?host=/tmp/sockets", "postgresql:///tmp/sockets/db"),
        ("postgresql://u:s3/cret@a,b/db", "postgresql://a,b/db"),
        ("postgresql://u:s3@cret@a/db", "postgresql://a/db"),
        ("postgresql://u:x?s3@cret@a/db", "postgresql:///"),
        ("postgresql://a/db?password=x@s3cret", "postgresql:///"),
        ("host=a port=5433 dbname=db user=u password='s3 cret'", "postgresql://a:5433/db"),
        ("password = s3cret dbname = db", "postgresql:///db"),
    ],
)
def test_what_is_shown_of_an_address_has_no_secret(address: str, shown: str) -> None:
    app = hr.App("shop")
    orders = app.capture(address, "orders", schema="id BIGINT", key="id")

    @app.view(key="id")
    def latest(orders: Any) -> Any:
        return orders

    assert str(orders.database) == shown
    topology = app.topology()
    for text in (repr(orders), repr(orders.database), as_text(topology), as_mermaid(topology), str(orders.fingerprint)):
        assert "cret" not in text
    assert f"public.orders of {shown}" in as_text(topology)
    assert orders.database.address == address


def test_a_wrong_address_is_refused_without_showing_it() -> None:
    app = hr.App("shop")
    app.capture("mysql://u:s3cret@a/db", "orders")
    app.capture("", "lines")
    assert messages(app) == [
        "capture 'orders': database: the address is not one of PostgreSQL",
        "capture 'lines': database: the address is empty",
    ]


@given(st.tuples(NAMES, NAMES))
def test_any_name_of_a_table_is_read_back_from_sql(names: tuple[str, str]) -> None:
    table = TableName(*names)
    assert TableName.of(table.quoted) == table


def test_names_of_tables_are_read_as_sql_reads_them() -> None:
    assert TableName.of("Orders") == TableName("public", "orders")
    assert TableName.of('sales."Orders"') == TableName("sales", "Orders")
    assert TableName.of('"a""b.c"') == TableName("public", 'a"b.c')
    for wrong in ("", "a.b.c", "a.", ".a", "a b", '"a', "1a"):
        with pytest.raises(hr.InputError, match="is not the name of a table"):
            TableName.of(wrong)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"snapshot": "sometimes"}, "snapshot: 'sometimes' is unknown"),
        ({"mask": {"email": "rot13"}}, "mask: 'rot13' is unknown"),
        ({"mask": "id", "key": "id"}, "mask: 'id' is in the key, which identifies a row"),
        ({"mask": "email", "columns": ["name"]}, "mask: 'email' is not among the columns"),
        ({"where": " "}, "where: ' ' is not a condition"),
        ({"columns": 3}, "columns: 3 is neither a name nor a list of names"),
        ({"schema": "id BIGINT", "key": "no"}, "key 'no' is not a column"),
        ({"schema": "id BIGINT, x INT", "columns": "id"}, "schema: 'x' is not among the columns that are captured"),
        ({"schema": "id BIGINT, _deleted INT"}, "schema: the column '_deleted' has a reserved name"),
        ({"schema": "id BIGINT, x INT", "mask": {"x": "hash"}}, "mask: 'x' is INT, and its hash is text"),
        ({"schema": "id BIGINT, x INT NOT NULL", "mask": "x"}, "mask: 'x' is masked by null and declared NOT NULL"),
        ({"name": "no good", "topic": "orders"}, "the name 'no good' cannot be a parameter's name"),
        ({"topic": "no good"}, "'no good' cannot be a topic's name"),
    ],
)
def test_problems_are_told_with_the_declaration(options: dict[str, Any], problem: str) -> None:
    app, _ = app_with(**options)
    assert messages(app) == [f"capture {options.get('name', 'public.orders')!r}: {problem}"]


def test_masks_are_null_unless_said_otherwise() -> None:
    _, orders = app_with(mask=["email", "phone"])
    assert orders.masks == {"email": Mask.NULL, "phone": Mask.NULL}
    _, orders = app_with(mask={"email": "hash", "phone": "null"})
    assert orders.masks == {"email": Mask.HASH, "phone": Mask.NULL}


def test_what_the_declaration_leaves_out_comes_from_the_database() -> None:
    _app, orders = app_with(event_time="at")
    complete = described(orders, "id BIGINT, at TIMESTAMP", ["id"])
    assert complete.is_described
    assert (complete.schema.ddl, complete.key) == ("id BIGINT, at TIMESTAMP", ("id",))
    assert complete.lateness.microseconds == 0
    _, given_all = app_with(schema="code STRING", key="code")
    assert described(given_all, "id BIGINT", ["id"]).schema.ddl == "code STRING"
    assert described(given_all, "id BIGINT", ["id"]).key == ("code",)


@pytest.mark.parametrize(
    ("options", "key", "problem"),
    [
        ({}, [], "the table public.orders has no primary key"),
        ({"key": "code"}, ["id"], "key 'code' is not a column"),
        ({"event_time": "at"}, ["id"], "event_time 'at' is not a column"),
        ({"mask": {"n": "hash"}}, ["id"], "mask: 'n' is INT, and its hash is text"),
    ],
)
def test_what_does_not_fit_the_database_is_told_at_the_declaration(
    options: dict[str, Any], key: list[str], problem: str
) -> None:
    _, orders = app_with(**options)
    with pytest.raises(hr.TopologyError) as caught:
        described(orders, "id BIGINT, n INT", key)
    (found,) = caught.value.problems
    assert found.message == f"capture 'orders': {problem}"
    assert found.file.endswith("test_captures.py")


def test_nodes_of_a_graph_are_replaced_everywhere() -> None:
    app, orders = app_with()

    @app.view(key="id")
    def latest(orders: Any) -> Any:
        return orders.changes

    @app.stream
    def bad(rows: Any = orders.rejected) -> Any:
        return rows

    topology = app.topology()
    complete = described(orders, "id BIGINT", ["id"])
    now = topology.replaced({orders: complete})
    assert now.nodes["orders"] is complete
    assert now.feeds(latest) == (complete,)
    assert now.feeds(bad)[0].node is complete
    assert [query.name for query in now.queries] == [query.name for query in topology.queries]
    assert topology.feeds(latest) == (orders,)


def test_a_database_has_options_of_its_own() -> None:
    made = hr.database(
        ADDRESS, publication="Shop", heartbeat="1 minute", lag_limit="2 GB", on_lag_limit="snapshot"
    ).named_after("shop")
    assert (made.slot, made.publication) == ("headrace_shop_shop", "Shop")
    assert (str(made.heartbeat), made.lag_limit, made.on_lag_limit) == ("1 minute", 2 << 30, OnLagLimit.SNAPSHOT)
    assert hr.database(ADDRESS, lag_limit=5).lag_limit == 5
    long = Database(ADDRESS).named_after("a" * 60).slot
    assert len(long) == 63
    assert long != Database(ADDRESS + "s").named_after("a" * 60).slot


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"slot": "Orders!"}, "slot: 'Orders!' cannot be a slot's name"),
        ({"slot": ""}, "slot: '' cannot be a slot's name"),
        ({"slot": "a" * 64}, f"slot: {'a' * 64!r} is not a name of 1 to 63 characters"),
        ({"publication": ""}, "publication: '' is not a name of 1 to 63 characters"),
        ({"heartbeat": "1 millisecond"}, "heartbeat: 1 millisecond is too short"),
        ({"lag_limit": "much"}, "lag_limit: 'much' is not a size"),
        ({"lag_limit": 0}, "lag_limit: 0 is not a size"),
        ({"on_lag_limit": "snapshot"}, "on_lag_limit needs a limit"),
    ],
)
def test_options_of_a_database_are_checked(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(hr.InputError) as caught:
        hr.database(ADDRESS, **options)
    assert caught.value.problem == problem


def test_one_slot_has_one_set_of_options() -> None:
    app = hr.App("shop")
    app.capture(ADDRESS, "orders")
    app.capture(hr.database(ADDRESS, heartbeat="1 minute"), "lines")
    assert messages(app) == [
        "capture 'lines': it reads the slot 'headrace_shop_shop' as the capture 'orders' does, with other options"
    ]


def test_a_table_is_captured_once_by_a_slot() -> None:
    app = hr.App("shop")
    app.capture(ADDRESS, "orders")
    app.capture(ADDRESS, "public.orders", name="again", topic="again")
    assert messages(app) == ["capture 'again': public.orders is captured by 'orders' already"]


def test_rows_cannot_be_sent_to_a_captured_table() -> None:
    from headrace.clients.rows import RowWriter

    _, orders = app_with(schema="id BIGINT", key="id")
    with pytest.raises(hr.InputError, match="capture 'orders': its topic has a database's changes"):
        RowWriter(orders)


def test_debezium_is_a_format_of_tables() -> None:
    app = hr.App("shop")
    app.topic("orders", "id BIGINT", format="debezium")
    assert messages(app) == ["topic 'orders': Debezium's envelope has the changes of a table"]
