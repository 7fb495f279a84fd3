"""The demos run as they are, in a process of their own, end by themselves, and find nothing wrong."""

import subprocess
import sys

import pytest

from tests.examples.conftest import EXAMPLES

pytestmark = [pytest.mark.timeout(400), pytest.mark.long]


def run(name: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *words], capture_output=True, text=True, timeout=380, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def test_the_demo_of_antifraud_accounts_for_every_payment() -> None:
    said = run("fraud_demo.py", "--seconds", "25")
    assert "payments are accounted for, and every total is right." in said
    assert "and the books say" not in said
    assert "until it is in the view" in said


def test_the_demo_of_pricing_agrees_with_an_independent_count() -> None:
    said = run("pricing_demo.py", "--seconds", "16")
    assert "prices are what an independent count makes of" in said
