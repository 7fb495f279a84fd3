"""Processes of a run beside Spark, such as capture and the workers of queues: started, watched and restarted.

A kind of process is a function `main(supervisor, task)`. It runs in a process of its own, which is not Spark's, so it
neither waits for a batch nor ends with Java. To add a kind:

1. Write `main(supervisor: Supervisor, task: Mapping[str, Any]) -> None` in a module of its package. It works until
   `supervisor.is_stopping`, tells its figures with `supervisor.report(...)`, and a remarkable event with
   `supervisor.remark(text)`. What it raises ends the process.
2. Return a `Child` for it, with `main` as "package.module:function" and a `task` of JSON values, from a function
   `(topology, config) -> list[Child]`.
3. Name that function in `KINDS` of `headrace/services/children.py`. Every way to run an app then starts the process.

What happens when a process ends:

- An `Error` that says that a service is unavailable: it is restarted for as long as the `patience` of the run lasts.
- Any other `Error` ends the run at once with its message: it was raised on purpose, and restarting does not help.
- Any other exception, or a signal: it is restarted, and ends the run after `attempts` in a row.

The pause before a restart doubles each time. A process that ran for ten minutes starts a new count.

The two are connected by a socket. When it closes, because the supervisor was killed, the process ends at once: two
processes with the same task never run for longer than a moment.
"""

import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

from headrace.config.kafka_errors import is_transient
from headrace.errors import Error, PostgresUnavailable, ServiceError
from headrace.link import Link
from headrace.processes import spawn
from headrace.threads import Threads, calling

__all__ = ["Child", "ProcessState", "ProcessStatus", "Supervised", "Supervisor"]

POLL = 0.1
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0
STABLE_AFTER = 600.0
STOP_SECONDS = 20.0
"""How long a process may take to finish what it does before it is killed."""


@dataclass(frozen=True, slots=True)
class Child:
    """A process to run beside the nodes of an app."""

    name: str
    main: str
    """The function that it runs, as "package.module:function"."""
    task: Mapping[str, Any] = field(default_factory=dict)
    """What the function is called with; JSON values. It is sent over the socket, so it may have secrets."""


class ProcessState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """A process, now."""

    name: str
    state: ProcessState = ProcessState.STARTING
    pid: int | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)
    """What it reported last, by name: numbers and short texts."""
    restarts: int = 0
    last_error: str | None = None


class Supervised:
    """The supervisor's side: starts the processes and looks after them, each in a thread."""

    def __init__(
        self,
        logs: Path,
        threads: Threads,
        *,
        attempts: int = 5,
        patience: float = 600.0,
        remark: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`logs` is the folder for what the processes print. A process that fails for good is the failure of `threads`.

        `remark(text)` is called, from a thread, with what a person should know.
        """
        self._logs = logs
        self._threads = threads
        self._attempts = attempts
        self._patience = patience
        self._remark = remark
        self._watched: list[_Watched] = []

    @contextmanager
    def running(self, children: Sequence[Child]) -> Iterator[None]:
        """Run the processes until the end of the block; then they finish what they do."""
        self._watched = [
            _Watched(
                child, self._logs / f"{child.name.replace(' ', '-')}.log", self._attempts, self._patience, self._remark
            )
            for child in children
        ]
        started: list[Thread] = []
        try:
            started += [self._threads.start(one.child.name, one.run) for one in self._watched]
            yield
        finally:
            for one in self._watched:
                one.stop()
            for thread in started:
                thread.join()

    def status(self) -> list[ProcessStatus]:
        """Every process, in the order they were given."""
        return [one.status for one in self._watched]


class _Watched:
    """One process and its restarts."""

    def __init__(self, child: Child, log: Path, attempts: int, patience: float, remark: Callable[[str], None]) -> None:
        self.child = child
        self.status = ProcessStatus(child.name)
        self._log = log
        self._attempts = attempts
        self._patience = patience
        self._remark = remark
        self._stopping = Event()
        self._failures = 0
        self._unavailable_since: float | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._changing = Lock()

    def run(self) -> None:
        """Until it is stopped, or fails for good: then an Error is raised."""
        try:
            while not self._stopping.is_set():
                began = time.monotonic()
                code, failure = self._once()
                if self._stopping.is_set() or (code == 0 and failure is None):
                    break
                if time.monotonic() - began > STABLE_AFTER:
                    self._failures, self._unavailable_since = 0, None
                self._set(restarts=self.status.restarts + 1, state=ProcessState.RESTARTING, pid=None)
                self._pause(code, failure)
        except Error as error:
            self._set(state=ProcessState.FAILED, pid=None, last_error=str(error))
            raise
        self._set(state=ProcessState.STOPPED, pid=None)

    def stop(self) -> None:
        self._stopping.set()
        with self._changing:
            if self._process is not None and self._process.poll() is None:
                self._process.terminate()

    def _once(self) -> tuple[int, dict[str, Any] | None]:
        """Run the process to its end: its exit code, and what it said it failed with."""
        failure: dict[str, Any] | None = None
        ours, theirs = socket.socketpair()
        with ours:
            with theirs, self._changing:
                if self._stopping.is_set():
                    return 0, None
                process = self._process = _started(self.child.main, theirs.fileno(), self._log)
            link = Link(ours)
            link.send(task=self.child.task)
            self._set(pid=process.pid)
            stop_by: float | None = None
            try:
                while True:
                    message = link.receive(POLL)
                    if message is not None:
                        failure = message.get("failed", failure)
                        self._take(message)
                    if self._stopping.is_set():
                        stop_by = stop_by or time.monotonic() + STOP_SECONDS
                        if time.monotonic() > stop_by:
                            process.kill()
            except EOFError:
                pass
            except BaseException:
                process.kill()
                raise
            finally:
                # It closes its socket when it ends.
                with suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_SECONDS)
                process.kill()
                code = process.wait()
        return code, failure

    def _take(self, message: Mapping[str, Any]) -> None:
        if "figures" in message:
            self._set(state=ProcessState.RUNNING, figures=message["figures"])
            # Working, not only started: what was unavailable is there again.
            self._unavailable_since = None
        if "remark" in message:
            self._remark(f"{self.child.name}: {message['remark']}")

    def _pause(self, code: int, failure: Mapping[str, Any] | None) -> None:
        """Wait before the next attempt; raise if there is none."""
        said = self._reason(code) if failure is None else str(failure["problem"])
        self._set(last_error=said)
        if failure is not None and failure["is_final"]:
            raise ServiceError(f"{self.child.name}: {said}", next_step=failure["next_step"])
        now = time.monotonic()
        self._failures += 1
        if failure is not None and failure["is_unavailable"]:
            self._unavailable_since = self._unavailable_since or now
            if now - self._unavailable_since > self._patience:
                raise ServiceError(f"{self.child.name}: {said}", next_step=failure["next_step"])
        elif self._failures >= self._attempts:
            raise ServiceError(
                f"{self.child.name} failed {self._failures} times in a row: {said}",
                next_step=f"see {self._log}; restart the app once the cause is removed: it resumes where it was",
            )
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (min(self._failures, 10) - 1))
        self._remark(f"{self.child.name}: {said}; restarting in {pause:g} s")
        self._stopping.wait(pause)

    def _reason(self, code: int) -> str:
        if code < 0:
            return f"its process was killed by {signal.Signals(-code).name}"
        return f"its process ended with exit code {code}"

    def _set(self, **changes: Any) -> None:
        self.status = replace(self.status, **changes)


def _started(main: str, link: int, log: Path) -> "subprocess.Popen[bytes]":
    # -P: a module of the user's folder must not replace one that is imported.
    return spawn([sys.executable, "-P", "-m", __name__, main, str(link)], log, folder=Path.cwd(), descriptors=(link,))


class Supervisor:
    """The process's side: its supervisor, to whom it reports."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._stopping = Event()

    @property
    def is_stopping(self) -> bool:
        """Whether the process has been asked to finish what it does and return."""
        return self._stopping.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait until the process is asked to stop; False if it was not within the time."""
        return self._stopping.wait(seconds)

    def report(self, **figures: Any) -> None:
        """The figures to show for this process: numbers and short texts by name. The first says that it works."""
        self._link.send(figures=figures)

    def remark(self, text: str) -> None:
        """Tell a person that something happened."""
        self._link.send(remark=text)

    def failed(self, error: BaseException) -> None:
        """Say what the process ends with."""
        unavailable = is_transient(error) or isinstance(error, PostgresUnavailable)
        problem = error.problem if isinstance(error, Error) else traceback.format_exception_only(error)[-1].strip()
        self._link.send(
            failed={
                "problem": problem,
                "next_step": error.next_step if isinstance(error, Error) else None,
                "is_unavailable": unavailable,
                "is_final": isinstance(error, Error) and not unavailable,
            }
        )

    def stop(self) -> None:
        self._stopping.set()

    def listen(self) -> None:
        """End the process when the supervisor has ended."""
        try:
            while True:
                self._link.receive()
        except EOFError:
            os._exit(1)


def run(main: str, descriptor: int) -> int:
    """Run a function as a child of the process at the other end of the socket; returns the exit code."""
    link = Link.inherited(descriptor)
    supervisor = Supervisor(link)
    signal.signal(signal.SIGTERM, calling(supervisor.stop))
    try:
        told = link.receive()
    except EOFError:
        return 1
    assert told is not None
    Thread(target=supervisor.listen, name="headrace supervisor", daemon=True).start()
    module, _, function = main.partition(":")
    try:
        getattr(import_module(module), function)(supervisor, told["task"])
    except BaseException as error:
        supervisor.failed(error)
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], int(sys.argv[2])))
