"""The Java clients against the broker: one JVM a version runs every check of java/ClientChecks.java."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import peers

SOURCES = Path(__file__).with_name("java")
CHECKS = [
    "topics",
    "configs",
    "cluster",
    "codecs",
    "acks",
    "sizes",
    "offsets",
    "out_of_range",
    "automatic_creation",
    "groups",
    "group_admin",
    "static_members",
    "pattern",
    "transactions",
    "transaction_offsets",
    "fencing",
    "stable_offset",
]

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[peers.Server]:
    home = tmp_path_factory.mktemp("java-clients")
    with peers.broker_for_tests(home, {"group.initial.rebalance.delay.ms": "0"}) as server:
        yield server


@pytest.fixture(scope="module", params=["3.9", "4.3"])
def outcomes(request: pytest.FixtureRequest, broker: peers.Server) -> dict[str, str]:
    """What became of each check: "" where it passed, else the trace."""
    libraries = peers.jars(f"clients-{request.param}")
    classes = peers.compiled(SOURCES, libraries)
    run = subprocess.run(
        [peers.java(), "-Xmx512m", "-cp", peers.classpath(classes, libraries), "ClientChecks", broker.address],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    lines = [line.split("\t", 2) for line in run.stdout.splitlines()]
    return {name: "" if outcome == "ok" else trace.replace("\\n", "\n") for name, outcome, trace in lines}


@pytest.mark.parametrize("check", CHECKS)
def test_java_client(outcomes: dict[str, str], check: str) -> None:
    assert outcomes[check] == ""


def test_every_check_has_a_test(outcomes: dict[str, str]) -> None:
    assert list(outcomes) == CHECKS
