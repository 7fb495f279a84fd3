"""The antifraud example, step by step on the harness: what its books say is what comes out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import fraud
import payments_generator as source
from headrace.testing import Harness

pytestmark = pytest.mark.timeout(300)

START = datetime(2026, 1, 31, 12, 30, tzinfo=UTC)


def send(harness: Harness, books: source.Books, made: list[source.Payment]) -> None:
    rows: list[Any] = [payment.raw if payment.row is None else payment.row for payment in made]
    harness.send(fraud.payments, rows)
    for payment in made:
        books.enter(payment)


def test_every_payment_is_accounted_for(headrace_harness: Callable[..., Harness]) -> None:
    harness = headrace_harness(fraud.app)
    generator, books = source.Payments(seed=3), source.Books()
    in_order = [generator.make(START, {source.ORDINARY: 1}) for _ in range(20)]
    send(harness, books, in_order)
    harness.settle()
    for step in range(3):
        moments = [START + timedelta(seconds=1 + step * 20 + number / 50) for number in range(1000)]
        send(harness, books, [generator.make(moment) for moment in moments])
        harness.settle()

    rows = harness.rows(fraud.accepted)
    assert sorted(row["id"] for row in rows) == sorted(row["id"] for row in books.accepted)
    assert len(harness.rows(fraud.payments.rejected)) == books.sent[source.MALFORMED]
    progress = harness.progress(fraud.accepted)
    assert progress.late == books.sent[source.LATE]
    assert progress.rows == sum(books.sent.values())
    spent = {(row["card"], row["window_start"]): (row["n"], row["total"]) for row in harness.rows(fraud.spend)}
    assert spent == books.spent()

    harness.advance(START + timedelta(hours=1))
    wanted = books.bursts(size=20, every=5, more_than=5)
    found = {(row["card"], row["window_start"]): row["n"] for row in harness.rows(fraud.bursts)}
    assert found == wanted
    assert len(wanted) > 10
