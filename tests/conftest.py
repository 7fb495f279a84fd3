"""Fixtures for every test: one broker to talk to, one Spark session, and the `headrace` command."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.peers import broker_for_tests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.testing import Environment

# How long an example takes says how busy the machine is, and nothing of what is tested.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# What tests define is found by Spark's Python workers too, wherever the tests were when Spark started.
ROOT = str(Path(__file__).parent.parent)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))

COMMAND = str(Path(sys.executable).with_name("headrace"))


@pytest.fixture(scope="session")
def broker_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker in a process of its own, shared by all tests that bring their own topic names."""
    settings = {
        "group.initial.rebalance.delay.ms": "0",
        "num.partitions": "1",
        # Tests tell of times long ago, by which the broker would find records to be past their retention.
        "log.retention.check.interval.ms": str(24 * 3600 * 1000),
    }
    with broker_for_tests(tmp_path_factory.mktemp("broker"), settings) as server:
        yield server.address


@pytest.fixture(scope="session")
def postgres_dsn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An embedded PostgreSQL, shared by all tests that bring their own schema names."""
    from headrace.tables import EmbeddedPostgres

    server = EmbeddedPostgres(tmp_path_factory.mktemp("postgres"))
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture(scope="session")
def spark(headrace_environment: Environment) -> SparkSession:
    """The one Spark session that all tests of this process share, those with a harness too."""
    # PySpark gives timestamps to Python in the machine's zone.
    os.environ["TZ"] = "UTC"
    time.tzset()
    return headrace_environment.spark


@pytest.fixture
def topic() -> str:
    """A name no other test uses."""
    return f"topic-{uuid.uuid4().hex[:12]}"


class Headrace:
    """Runs the command as a user does, against the shared broker unless told otherwise."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address = address
        self.folder = folder

    def environment(self) -> Mapping[str, str]:
        return {**os.environ, "HEADRACE_KAFKA": self.address, "COLUMNS": "200"}

    def __call__(self, *words: str, stdin: str | bytes = b"", limit: float = 60) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [COMMAND, *words],
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            env=self.environment(),
            cwd=self.folder,
            timeout=limit,
            check=False,
        )
        out, err = done.stdout.decode(errors="surrogateescape"), done.stderr.decode(errors="surrogateescape")
        assert "Traceback" not in err
        return subprocess.CompletedProcess(done.args, done.returncode, out, err)

    def ok(self, *words: str, stdin: str | bytes = b"") -> str:
        """What it printed; it must have succeeded."""
        done = self(*words, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def fails(self, *words: str, stdin: str | bytes = b"", code: int = 1) -> str:
        """The last line it complained with; it must have failed with that code, and only with lines."""
        done = self(*words, stdin=stdin)
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        last = done.stderr.splitlines()[-1]
        assert last.startswith("headrace: ")
        return last

    def start(self, *words: str) -> subprocess.Popen[str]:
        """The command as a process that runs on."""
        return subprocess.Popen(
            [COMMAND, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment(),
            cwd=self.folder,
        )


@pytest.fixture
def headrace(broker_address: str, tmp_path: Path) -> Headrace:
    return Headrace(broker_address, tmp_path)


@pytest.fixture
def headrace_alone(tmp_path: Path) -> Headrace:
    """The command with no broker at its address."""
    return Headrace("127.0.0.1:1", tmp_path)
