"""Tables joined with tables, on the harness: kept up to date as either changes; and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

import headrace as hr
from headrace.config.run import RunConfig
from headrace.testing import Harness

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.engine.read.tables import Table

pytestmark = pytest.mark.timeout(300)


def test_two_tables_stay_joined_as_either_changes(headrace_harness: Callable[..., Harness]) -> None:
    app = hr.App("directory")
    orders = app.table("orders", "id STRING, customer STRING, total INT", key="id")
    customers = app.table("customers", "customer STRING, name STRING", key="customer")
    ratings = app.table("ratings", "who STRING, stars INT", key="who")

    @app.view(key="id")
    def named(orders: Table, customers: Table) -> Table:
        return hr.join(orders, customers, on="customer")

    @app.table(key="id")
    def perhaps_named(orders: Table, customers: Table) -> Table:
        return hr.join(orders, customers.where("name <> 'Eve'"), on="customer", how="left")

    @app.table(key="customer")
    def profiles(customers: Table, ratings: Table) -> Table:
        return hr.join(customers, ratings, on={"customer": "who"}, how="full")

    @app.view(key="id")
    def ordered(customers: Table, orders: Table) -> Table:
        return hr.join(customers, orders, on="customer", how="right")

    @app.stream(key="customer")
    def pairs(orders: Table, ratings: Table) -> DataFrame:
        return hr.join(orders, ratings, on={"customer": "who"}).changes

    harness = headrace_harness(app)

    def of(node: str, *columns: str) -> set[tuple[Any, ...]]:
        return {tuple(row[name] for name in columns) for row in harness.rows(node)}

    harness.send(orders, {"id": "1", "customer": "a", "total": 5}, {"id": "2", "customer": "b", "total": 6})
    harness.send(orders, {"id": "4", "customer": None, "total": 1})
    harness.send(customers, {"customer": "a", "name": "Ann"}, {"customer": "c", "name": "Cem"})
    harness.send(ratings, {"who": "a", "stars": 5}, {"who": "d", "stars": 1})
    harness.settle()
    assert of("named", "id", "total", "name") == {("1", 5, "Ann")}
    assert of("perhaps_named", "id", "name") == {("1", "Ann"), ("2", None), ("4", None)}
    assert of("ordered", "id", "name") == {("1", "Ann"), ("2", None), ("4", None)}
    assert of("profiles", "customer", "name", "stars") == {("a", "Ann", 5), ("c", "Cem", None), ("d", None, 1)}

    harness.send(customers, {"customer": "a", "name": "Eve"}, {"customer": "b", "name": "Bob"})
    harness.send(orders, {"id": "1", "customer": "b", "total": 7})
    harness.send(orders, {"id": "3", "customer": "a", "total": 8})
    harness.settle()
    assert of("named", "id", "total", "name") == {("1", 7, "Bob"), ("2", 6, "Bob"), ("3", 8, "Eve")}
    assert of("perhaps_named", "id", "name") == {("1", "Bob"), ("2", "Bob"), ("3", None), ("4", None)}
    assert of("ordered", "id", "name") == {("1", "Bob"), ("2", "Bob"), ("3", "Eve"), ("4", None)}

    harness.restart()
    harness.send(customers, None, key="b")
    harness.send(orders, None, key="3")
    harness.send(ratings, None, key="a")
    harness.settle()
    assert of("named", "id") == set()
    assert of("perhaps_named", "id", "name") == {("1", None), ("2", None), ("4", None)}
    assert of("ordered", "id", "name") == {("1", None), ("2", None), ("4", None)}
    assert of("profiles", "customer", "name", "stars") == {("a", "Eve", None), ("c", "Cem", None), ("d", None, 1)}
    told = [(row["id"], row["customer"], row["_deleted"]) for row in harness.rows(pairs)]
    assert told[0] == ("1", "a", False)
    assert {("1", None, True), ("3", "a", False), ("3", None, True)} <= set(told), (
        "of what is gone only the key is told"
    )


def test_tables_that_cannot_be_joined_are_told_before_any_query_starts(spark: SparkSession, config: RunConfig) -> None:
    from headrace.engine.plan.planner import plan_topology

    def told(function: Callable[..., Any]) -> str:
        app = hr.App("wrong")
        app.table("orders", "id STRING, customer STRING, total INT", key="id")
        app.table("customers", "customer STRING, name STRING", key="customer")
        app.table("numbered", "customer INT, total INT", key="customer")
        app.view(key="id")(function)
        with pytest.raises(hr.PlanError) as caught:
            plan_topology(app.topology(), spark, config)
        (problem,) = caught.value.problems
        return f"{problem.message}; {problem.next_step}"

    def with_within(orders: Any, customers: Any) -> Any:
        return hr.join(orders, customers, on="customer", within="1 minute")

    def unlike(orders: Any, numbered: Any) -> Any:
        return hr.join(orders, numbered.select("customer", "total AS sum"), on="customer")

    def same(orders: Any, numbered: Any) -> Any:
        return hr.join(orders.select("id", "total", "1 AS customer"), numbered, on="customer")

    def keyless(orders: Any, customers: Any) -> Any:
        return hr.join(customers, orders, on="customer", how="left")

    def other_key(orders: Any, customers: Any) -> Any:
        return hr.join(customers, orders, on="customer")

    assert "within is for streams, and these are tables; remove within" in told(with_within)
    assert "'customer' is string on the left, and 'customer' int on the right; cast one of them" in told(unlike)
    assert "both sides have 'total'; rename it on one side: numbered.select(..., 'total AS its_total')" in told(same)
    assert (
        "a row can be without a match, and then has no value for 'id', which is in the key of the table orders"
        in told(keyless)
    )
    assert (
        "its key is id, but the key of the table that it returns is customer, id; write key=['customer', 'id']"
        in told(other_key)
    )
