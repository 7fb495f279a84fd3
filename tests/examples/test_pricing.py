"""The pricing example on the harness: prices are what an independent count makes of demand and supply."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

import pricing
from headrace.testing import Harness
from rides_generator import City
from tests.examples.golden import assert_golden

pytestmark = pytest.mark.timeout(300)

START = datetime(2026, 1, 31, 22, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
WAIT = timedelta(seconds=11)


def test_prices_follow_demand_and_supply(headrace_harness: Callable[..., Harness]) -> None:
    harness = headrace_harness(pricing.app)
    minutes = City().minutes(START)
    expected = {}
    for _, minute in zip(range(4), minutes, strict=False):
        harness.send(pricing.requests, minute.requests)
        harness.send(pricing.drivers, minute.drivers)
        harness.settle()
        expected |= {(zone, minute.start): figures for zone, figures in minute.prices().items()}
    harness.advance(START + 4 * MINUTE + WAIT)

    def figures(row: dict[str, object]) -> tuple[object, object, object]:
        return row["demand"], row["supply"], row["multiplier"]

    rows = harness.rows(pricing.prices)
    assert {(row["zone"], row["window_start"]): figures(row) for row in rows} == expected
    assert len(rows) == len(expected)
    tariff = {row["zone"]: figures(row) for row in harness.rows(pricing.tariff)}
    assert tariff == {zone: expected[zone, START + 3 * MINUTE] for zone, _ in expected}
    assert max(price for _, _, price in tariff.values()) == Decimal(3)  # it rains
    assert_golden(harness, "pricing", pricing.demand, pricing.supply, pricing.prices, pricing.tariff)


def test_a_zone_without_drivers_costs_three_times_as_much(headrace_harness: Callable[..., Harness]) -> None:
    harness = headrace_harness(pricing.app)
    harness.send(pricing.requests, {"id": "1", "zone": "harbour", "at": START})
    harness.send(pricing.drivers, {"driver": "d", "zone": "harbour", "free": False, "at": START})
    harness.advance(START + MINUTE)
    assert harness.rows(pricing.tariff) == [], "a driver may have been there all the same"
    harness.advance(START + MINUTE + WAIT)
    (row,) = harness.rows(pricing.tariff)
    assert (row["zone"], row["demand"], row["supply"], row["multiplier"]) == ("harbour", 1, 0, Decimal(3))
