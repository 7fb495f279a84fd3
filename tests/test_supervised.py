"""Processes beside Spark: they report, are restarted, end with their supervisor, and may end the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace import ServiceError, supervised
from headrace.supervised import Child, ProcessState, ProcessStatus, Supervised
from headrace.threads import Threads

LIMIT = 20.0


def until(condition: Callable[[], Any]) -> Any:
    limit = time.monotonic() + LIMIT
    while not (found := condition()):
        assert time.monotonic() < limit, "it did not come to that"
        time.sleep(0.01)
    return found


def child(name: str, **task: Any) -> Child:
    return Child(f"test {name}", f"tests.supervised_children:{name}", task)


class Supervision:
    """One process under supervision, and what was said of it."""

    def __init__(self, folder: Path, one: Child, **settings: Any) -> None:
        self.threads = Threads()
        self.remarks: list[str] = []
        self.supervised = Supervised(folder / "logs", self.threads, remark=self.remarks.append, **settings)
        self.running = self.supervised.running([one])

    @property
    def status(self) -> ProcessStatus:
        return self.supervised.status()[0]

    def __enter__(self) -> Supervision:
        self.running.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.running.__exit__(*error)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "FIRST_PAUSE", 0.01)


def test_it_reports_and_finishes_when_it_is_stopped(tmp_path: Path) -> None:
    file = tmp_path / "finished"
    with Supervision(tmp_path, child("works", word="here", file=str(file))) as one:
        until(lambda: one.status.figures.get("beats", 0) > 2)
        assert one.status.state is ProcessState.RUNNING
        assert one.status.figures["word"] == "here"
        assert psutil.pid_exists(one.status.pid or 0)
    assert file.read_text() == "finished"
    assert one.status.state is ProcessState.STOPPED
    assert one.threads.failure is None


def test_it_is_restarted_after_kill_9(tmp_path: Path) -> None:
    with Supervision(tmp_path, child("works", word="", file=str(tmp_path / "finished"))) as one:
        for times in range(3):
            until(lambda: one.status.figures.get("beats") and one.status.state is ProcessState.RUNNING)
            pid = one.status.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            until(lambda: one.status.restarts > times and one.status.pid not in (None, pid))  # noqa: B023
    assert "test works: its process was killed by SIGKILL; restarting in 0.01 s" in one.remarks


def test_one_that_keeps_failing_ends_the_run_with_a_message(tmp_path: Path) -> None:
    with Supervision(tmp_path, child("raises"), attempts=3) as one:
        failure = until(lambda: one.threads.failure)
    assert isinstance(failure, ServiceError)
    assert failure.problem == "test raises failed 3 times in a row: ValueError: a defect"
    assert str(tmp_path / "logs" / "test-raises.log") in str(failure)
    assert "Traceback" in (tmp_path / "logs" / "test-raises.log").read_text()
    assert one.status.state is ProcessState.FAILED


def test_an_error_on_purpose_ends_the_run_at_once(tmp_path: Path) -> None:
    with Supervision(tmp_path, child("refuses")) as one:
        failure = until(lambda: one.threads.failure)
    assert str(failure) == "test refuses: the task is wrong; type another"
    assert one.remarks == []


def test_what_is_unavailable_is_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "there"
    with Supervision(tmp_path, child("misses_kafka", file=str(file)), attempts=2) as one:
        until(lambda: one.status.restarts >= 3)
        file.touch()
        until(lambda: one.status.figures == {"found": True})
    assert one.threads.failure is None


def test_patience_ends(tmp_path: Path) -> None:
    with Supervision(tmp_path, child("misses_kafka", file=str(tmp_path / "never")), patience=0.3) as one:
        failure = until(lambda: one.threads.failure)
    assert str(failure) == "test misses_kafka: no Kafka answers"


def test_one_that_has_ended_by_itself_is_not_restarted(tmp_path: Path) -> None:
    with Supervision(tmp_path, child("remarks_and_ends")) as one:
        until(lambda: one.status.state is ProcessState.STOPPED)
    assert one.remarks == ["test remarks_and_ends: all is done"]
    assert one.threads.failure is None


def test_one_that_does_not_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "STOP_SECONDS", 0.3)
    with Supervision(tmp_path, child("ignores_its_end")) as one:
        pid = until(lambda: one.status.figures.get("pid"))
    assert not psutil.pid_exists(pid)


SUPERVISOR = """
import sys, time
from pathlib import Path
from headrace.supervised import Child, Supervised
from headrace.threads import Threads

supervised = Supervised(Path(sys.argv[1]), Threads())
with supervised.running([Child("it", "tests.supervised_children:ignores_its_end")]):
    while not supervised.status()[0].figures:
        time.sleep(0.01)
    print(supervised.status()[0].figures["pid"], flush=True)
    time.sleep(60)
"""


def test_it_ends_when_its_supervisor_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SUPERVISOR, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        pid = int(supervisor.stdout.readline())
        assert psutil.pid_exists(pid)
        supervisor.kill()
    until(lambda: not psutil.pid_exists(pid))
