"""The demos run as they are, in a process of their own, end by themselves, and find nothing wrong."""

import subprocess
import sys
from signal import SIGINT

import pytest

from tests.ending import end
from tests.examples.conftest import EXAMPLES

pytestmark = [pytest.mark.timeout(400), pytest.mark.long]


def run(name: str, *words: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = process.communicate(timeout=380)
    finally:
        end(process, SIGINT)
    assert process.returncode == 0, out + err
    assert err == ""
    return out


def test_the_demo_of_antifraud_accounts_for_every_payment() -> None:
    said = run("fraud_demo.py", "--seconds", "25")
    assert "payments are accounted for, and every total is right." in said
    assert "and the books say" not in said
    assert "until it is in the view" in said


def test_the_demo_of_pricing_agrees_with_an_independent_count() -> None:
    said = run("pricing_demo.py", "--seconds", "16")
    assert "prices are what an independent count makes of" in said


def test_the_demo_of_orders_agrees_with_sql() -> None:
    said = run("orders_demo.py", "--seconds", "5")
    assert "Topic and view are what SQL says of the table" in said
    assert "NOT the same" not in said
