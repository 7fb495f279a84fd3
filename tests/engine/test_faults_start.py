"""What is missing or wrong when an app is started: one line says what and what to type next, and the exit code is 1."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from headrace.engine.run.jars import CONNECTORS
from headrace.services import Home
from tests.conftest import COMMAND
from tests.engine.disks import fill, mounted

pytestmark = pytest.mark.timeout(400)

APP = """
import headrace as hr

app = hr.App("small")
events = app.topic("events", "n BIGINT, k STRING", key="k")


@app.stream(key="k")
def same(events):
    return events
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "small.py").write_text(APP)
    return tmp_path


def complaint(folder: Path, kafka: str, *words: str, limit: float = 180, **environment: str) -> str:
    """The last line of `headrace run`, which must fail."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "HEADRACE_KAFKA")}
    done = subprocess.run(
        [COMMAND, "run", "small.py", "--kafka", kafka, *words],
        cwd=folder,
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


@pytest.fixture
def kafka(broker_address: str) -> str:
    made = subprocess.run(
        [COMMAND, "topics", "create", "events", "--kafka", broker_address], capture_output=True, check=False
    )
    assert made.returncode == 0 or b"exists" in made.stderr
    return broker_address


def test_no_java(folder: Path, kafka: str) -> None:
    said = complaint(folder, kafka, PATH=str(folder), XDG_CACHE_HOME=str(folder))
    assert said.startswith("headrace: Spark needs Java 17 or newer, and there is none on the PATH; install Java 17")
    assert "JAVA_HOME" in said


def test_no_jar_and_no_network(folder: Path, kafka: str) -> None:
    nobody = " ".join(f"-D{kind}.proxyHost=127.0.0.1 -D{kind}.proxyPort=1" for kind in ("http", "https"))
    said = complaint(folder, kafka, XDG_CACHE_HOME=str(folder / "cache"), JAVA_TOOL_OPTIONS=nobody)
    (jars,) = CONNECTORS.values()
    assert f"the jar {jars[0]}, which Spark needs to read topics, could not be downloaded" in said
    assert f"connect to the network once, or copy {jars[0].file_name} to {folder / 'cache'}" in said


def test_no_kafka_at_the_address(folder: Path) -> None:
    said = complaint(folder, "127.0.0.1:1")
    assert "no Kafka answers at 127.0.0.1:1" in said
    assert "--kafka" in said


def test_no_room_for_the_home_folder(folder: Path, kafka: str) -> None:
    with mounted(folder / "disk") as disk:
        fill(disk)
        said = complaint(folder, kafka, "--home", str(disk / "home"))
        assert str(disk / "home") in said
        assert "no space left on device" in said
        assert "--home" in said
        # Made while there was room, and filled up since.
        (disk / "ballast").unlink()
        Home(disk / "home").make()
        fill(disk)
        said = complaint(folder, kafka, "--home", str(disk / "home"))
    assert "Spark did not start" in said
    assert "No space left on device" in said
    assert "check that Java runs, and that the home folder is writable and has free space" in said


@pytest.mark.long
@pytest.mark.timeout(300)
def test_no_spark_at_the_address(folder: Path, kafka: str) -> None:
    began = time.monotonic()
    said = complaint(folder, kafka, "--spark", "spark://127.0.0.1:1", limit=280)
    assert "Spark did not start at spark://127.0.0.1:1" in said
    assert "check that the master listens" in said
    print(f"told after {time.monotonic() - began:.0f} s")
