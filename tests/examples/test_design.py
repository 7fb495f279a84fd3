"""The example that the design shows, run as it is written there."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from headrace.testing import Harness
from tests.examples.golden import assert_golden

pytestmark = pytest.mark.timeout(300)

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def loaded(folder: Path) -> Any:
    """The file as a user has it; here it has another name, since its layout is the design's and not ours."""
    file = folder / "fraud.py"
    file.write_text(Path(__file__).with_name("design.txt").read_text())
    spec = importlib.util.spec_from_file_location("design", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def payment(id: int, card: str, minutes: float, amount: str = "10.00") -> dict[str, Any]:
    at = NOON + timedelta(minutes=minutes)
    return {"id": str(id), "card": card, "amount": Decimal(amount), "country": "DE", "at": at}


def test_the_example_of_the_design_runs_as_it_is_written(
    headrace_harness: Callable[..., Harness], tmp_path: Path
) -> None:
    design = loaded(tmp_path)
    harness = headrace_harness(design.app)
    harness.send(design.cards, {"card": "a", "owner": "Ann", "home": "DE"}, timestamp=NOON)
    harness.send(design.cards, {"card": "a", "owner": "Ann", "home": "ES"}, timestamp=NOON + timedelta(minutes=3.1))
    harness.send(design.payments, [payment(number, "a", number / 2) for number in range(8)])
    harness.send(design.payments, [payment(number, "b", number) for number in range(8)])
    harness.advance(NOON + timedelta(minutes=10))

    burst = harness.rows(design.bursts)
    assert [(row["card"], row["id"], row["n"], row["total"]) for row in burst] == [
        ("a", "5", 6, Decimal(60)),
        ("a", "6", 7, Decimal(70)),
        ("a", "7", 8, Decimal(80)),
    ], "those of b are more than five minutes apart"
    assert burst[0]["window_end"] - burst[0]["window_start"] == timedelta(minutes=5)
    assert [(row["id"], row["owner"], row["home"]) for row in harness.rows(design.alerts)] == [
        ("5", "Ann", "DE"),
        ("6", "Ann", "DE"),
        ("7", "Ann", "ES"),
    ]
    assert {(row["card"], row["total"]) for row in harness.rows(design.spend)} == {("a", 80), ("b", 80)}
    assert harness.rows(design.tardy) == []

    late = [payment(10, "b", 2, "2.50"), payment(9, "a", 4, "1.50")]
    harness.send(design.payments, late[::-1])
    harness.settle()
    assert harness.rows(design.tardy) == [{name: row[name] for name in ("card", "at", "amount")} for row in late]
    assert harness.rows(design.bursts) == burst
    assert harness.progress("bursts").late == 2
    assert_golden(harness, "design", design.bursts, design.alerts, design.spend, design.tardy)
