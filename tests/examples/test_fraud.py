"""The antifraud example, step by step on the harness: what its books say is what comes out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import fraud
import payments_generator as source
from headrace.testing import Harness
from tests.examples.golden import assert_golden

pytestmark = pytest.mark.timeout(300)

START = datetime(2026, 1, 31, 12, 30, tzinfo=UTC)


def send(harness: Harness, books: source.Books, made: list[source.Payment]) -> None:
    rows: list[Any] = [payment.raw if payment.row is None else payment.row for payment in made]
    harness.send(fraud.payments, rows)
    for payment in made:
        books.enter(payment)


def bursts_of(harness: Harness, books: source.Books) -> dict[str, dict[str, Any]]:
    """What is told now of bursts, which must be what the books say."""
    bursts = {row["id"]: row for row in harness.rows(fraud.bursts)}
    figures = {id: (row["n"], row["total"], row["countries"]) for id, row in bursts.items()}
    assert figures == books.bursts(timedelta(seconds=20), 5)
    return bursts


def test_every_payment_is_accounted_for(headrace_harness: Callable[..., Harness]) -> None:
    harness = headrace_harness(fraud.app)
    generator, books = source.Payments(seed=3), source.Books()
    harness.send(fraud.cards, generator.cards(), timestamp=START - timedelta(days=3))
    for second in range(3):
        moments = [START + timedelta(seconds=second, milliseconds=number) for number in range(60)]
        send(harness, books, [generator.make(moment, {source.ORDINARY: 1}) for moment in moments])
        harness.settle()
    for step in range(3):
        moments = [START + timedelta(seconds=3 + step * 20 + number / 50) for number in range(1000)]
        send(harness, books, [generator.make(moment) for moment in moments])
        harness.settle()

    in_time, late = {row["id"] for row in books.accepted}, {row["id"] for row in books.late}
    assert sorted(row["id"] for row in harness.rows(fraud.accepted)) == sorted(in_time | late)
    assert sorted(row["id"] for row in harness.rows(fraud.tardy)) == sorted(late)
    assert len(harness.rows(fraud.payments.rejected)) == books.sent[source.MALFORMED]
    assert harness.progress(fraud.accepted).rows == sum(books.sent.values())
    assert harness.progress(fraud.bursts).late == len(late) > 20
    homes = {row["card"]: row["home"] for row in generator.cards()}
    assert all(row["home"] == homes[row["card"]] for row in harness.rows(fraud.known))
    spent = {(row["card"], row["window_start"]): (row["n"], row["total"]) for row in harness.rows(fraud.spend)}
    assert spent == books.spent()

    bursts = bursts_of(harness, books)
    assert len(bursts) > 10
    last = max(bursts.values(), key=lambda row: row["at"])
    names = ("card", "amount", "country", "at")
    straggler = {"id": "straggler", **{name: last[name] for name in names}, "at": last["at"] - timedelta(seconds=1)}
    send(harness, books, [source.Payment(source.STRAGGLER, last["card"], straggler)])
    harness.settle()
    bursts = bursts_of(harness, books)
    assert bursts[last["id"]]["revision"] == last["revision"] + 1, "the straggler alters what was told"
    abroad = {id for id, row in bursts.items() if row["country"] != row["home"]}
    assert {row["id"] for row in harness.rows(fraud.alarms)} == abroad != set()
    assert_golden(harness, "fraud", fraud.bursts, fraud.alarms, fraud.tardy)
