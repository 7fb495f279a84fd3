"""`headrace run` itself: it keeps the services up, and runs Spark and the app in a driver process that it restarts.

If Java is killed, the Python process beside it cannot go on: Spark starts once per process. The services must not end
with it, since producers depend on them. So the driver is a child: the same command, with a `Link` to this process.
The child takes the app's lock and says which services it needs; this process starts them, tells their addresses, and
forwards signals. If this process dies, the child's end of the link closes, and the child ends.
"""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import psutil

from headrace import EngineError
from headrace.cli.live import Display
from headrace.link import Link
from headrace.threads import Threads

if TYPE_CHECKING:
    from headrace.config import RunConfig

__all__ = ["Supervisor"]

POLL = 0.25
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0
STABLE_AFTER = 600.0
"""A driver that ran for so long starts a new count of attempts."""
JAVA_SECONDS = 20.0


class Supervisor:
    """Runs the driver until it ends for good."""

    def __init__(self, config: "RunConfig", seconds: float | None) -> None:
        self._config = config
        self._seconds = seconds
        self._display = Display()
        self._threads = Threads(config.home.absolute() / "logs" / "services.log")
        self._is_stopping = False
        self._driver: subprocess.Popen[bytes] | None = None
        self._link: Link | None = None
        self._addresses: dict[str, str | None] | None = None
        self._first_running: float | None = None
        self._running_since: float | None = None
        self._java: psutil.Process | None = None
        self._reason: str | None = None
        self._failures = 0

    def run(self) -> int:
        """Until the driver stops, or fails more often than the attempts allow. Returns its exit code."""
        with self._signals(), ExitStack() as services:
            while True:
                code = self._drive(services)
                self._threads.check()
                if not self._may_restart(code):
                    # A driver that is stopped before it can handle the signal dies of it.
                    return code if code >= 0 else 0 if code == -signal.SIGTERM else 1

    def _drive(self, services: ExitStack) -> int:
        """Run one driver process to its end."""
        self._reason = self._running_since = self._java = None
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                driver = self._driver = _spawn(theirs.fileno())
            link = self._link = Link(ours)
            try:
                from headrace.services import Services  # noqa: F401, which takes a while, as the start of the driver does

                if self._is_stopping:
                    driver.terminate()
                while self._threads.failure is None:
                    if (message := link.receive(POLL)) is not None:
                        self._take(message, link, services)
            except EOFError:
                return driver.wait()
            finally:
                self._link = None
                if driver.poll() is None:
                    driver.terminate()
                    driver.wait()
            return driver.wait()

    def _take(self, message: dict[str, Any], link: Link, services: ExitStack) -> None:
        if (needs := message.get("needs")) is not None:
            first = self._addresses is None
            if self._addresses is None:
                self._addresses = self._started(services, **needs)
            link.send(**self._addresses, first=first, seconds=self._seconds_left())
        if (java := message.get("running")) is not None:
            self._running_since = time.monotonic()
            self._first_running = self._first_running or self._running_since
            self._java = _process(java)
        self._reason = message.get("ended", self._reason)

    def _started(self, services: ExitStack, *, kafka: bool, postgres: bool) -> dict[str, str | None]:
        if not kafka and not postgres:
            return {"kafka": None, "postgres": None}
        from headrace.services import Services

        needed = Services(self._config.home)
        used = needed.used(kafka=kafka, postgres=postgres, notice=self._notice, threads=self._threads)
        found = services.enter_context(used)
        return {"kafka": found.kafka, "postgres": found.postgres}

    def _seconds_left(self) -> float | None:
        if self._seconds is None or self._first_running is None:
            return self._seconds
        return max(0.1, self._seconds - (time.monotonic() - self._first_running))

    def _notice(self, text: str) -> None:
        """The driver draws the table, so it prints what happens meanwhile."""
        if (link := self._link) is not None:
            link.send(notice=text)
        else:
            self._display.remark(text)

    def _may_restart(self, code: int) -> bool:
        """Whether Java or the driver was killed while the app ran; then wait before the next attempt."""
        if self._is_stopping or (self._reason is None and code >= 0):
            return False
        reason = self._reason or f"the driver process was killed by {signal.Signals(-code).name}"
        if self._running_since is None:
            raise self._given_up(f"{reason} before the app ran")
        if time.monotonic() - self._running_since > STABLE_AFTER:
            self._failures = 0
        self._failures += 1
        attempts = self._config.attempts
        if self._failures >= attempts:
            raise self._given_up(reason if self._failures == 1 else f"{reason}, {self._failures} times in a row")
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (self._failures - 1))
        self._display.remark(f"{reason}; restarting Spark in {pause:g} s (attempt {self._failures + 1} of {attempts})")
        self._await_java()
        limit = time.monotonic() + pause
        while time.monotonic() < limit and not self._is_stopping:
            time.sleep(0.05)
        return not self._is_stopping

    def _given_up(self, reason: str) -> EngineError:
        from headrace.engine import spark_log_path

        return EngineError(
            reason,
            next_step=f"see {spark_log_path(self._config.home)} and the system's log, for instance for a lack of "
            "memory; then restart the app: processing resumes from its checkpoints",
        )

    def _await_java(self) -> None:
        """Java ends by itself when its driver has. Two of them must not write to the same checkpoints."""
        if (java := self._java) is None:
            return
        try:
            java.wait(JAVA_SECONDS)
        except psutil.TimeoutExpired:
            java.kill()
            java.wait(JAVA_SECONDS)
        except psutil.NoSuchProcess:
            pass

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """The driver ignores Ctrl-C, which a terminal sends to both, and is stopped by SIGTERM from here alone."""

        def on_signal(_: int, __: FrameType | None) -> None:
            self._is_stopping = True
            if self._driver is not None and self._driver.poll() is None:
                self._driver.terminate()

        before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _spawn(link: int) -> "subprocess.Popen[bytes]":
    words = sys.argv[1:]
    at = words.index("run") + 1
    # -P: a module of the user's folder must not replace one that the command imports.
    command = [sys.executable, "-P", "-m", "headrace", *words[:at], "--link", str(link), *words[at:]]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return subprocess.Popen(command, pass_fds=(link,))
    finally:
        signal.signal(signal.SIGINT, before)


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid) if pid else None
    except psutil.NoSuchProcess:
        return None
