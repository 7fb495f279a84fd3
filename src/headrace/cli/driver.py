"""The driver process of `headrace run`: Spark and the queries of the app, with the services of its supervisor."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from headrace.cli.live import Display
from headrace.cli.starting_over import StartingOver
from headrace.engine import spark_log_path
from headrace.link import Link
from headrace.supervised import Supervised
from headrace.threads import Threads

if TYPE_CHECKING:
    from headrace.config import Offsets, RunConfig
    from headrace.engine import Jar, Runner
    from headrace.topology import App, QueryNode, Topology

__all__ = ["drive"]


class Stopped(BaseException):
    """SIGTERM before the queries run. The supervisor sends it for Ctrl-C too."""


def drive(
    link: Link,
    config: "RunConfig",
    file: Path,
    name: str | None,
    resets: Sequence[str],
    replays: Sequence[str],
    *,
    agreed: bool,
    keep_going: bool,
) -> int:
    """Run the app of a file until it is stopped; returns the exit code of the command."""
    from headrace.topology import load_app

    app = load_app(file, name)
    topology = app.topology()
    starting_over = StartingOver(topology, resets, replays, agreed)
    try:
        with _stops():
            return _run(link, app, topology, config, starting_over, keep_going)
    except Stopped:
        return 0


def _run(
    link: Link, app: "App", topology: "Topology", config: "RunConfig", starting_over: StartingOver, keep_going: bool
) -> int:
    from headrace.services import Addresses, Needs, launch, processes_of

    display = Display()
    threads = Threads(spark_log_path(config.home))
    processes = processes_of(config, threads, display.remark)
    answer: dict[str, Any] = {}

    def embedded(needs: Needs) -> Addresses:
        """The supervisor starts the services, and tells where they are."""
        display.remark(f"starting {app.name} in {config.home.absolute()}")
        link.send(needs={"kafka": needs.kafka, "postgres": needs.postgres})
        answer.update(_received(link))
        threads.start("supervisor", lambda: _listen(link, display))
        return Addresses(answer["kafka"], answer["postgres"])

    def starts_over(config: "RunConfig") -> "Mapping[str, Offsets | None]":
        # A driver that is restarted resumes; it does not reset its nodes once more.
        return starting_over.agreed(config, display) if answer["first"] else {}

    def fetching(jar: "Jar", there: int, wanted: int) -> None:
        display.remark(f"fetching {jar}, {there + 1} of {wanted} (once)")

    launched = launch(
        app,
        config,
        embedded,
        keep_going=keep_going,
        threads=threads,
        processes=processes,
        starts_over=starts_over,
        fetching=fetching,
        remark=display.remark,
    )
    with launched as runner:
        return _until_stopped(link, runner, processes, display, answer["seconds"])


def _until_stopped(link: Link, runner: "Runner", processes: Supervised, display: Display, seconds: float | None) -> int:
    from headrace.engine import SparkEnded

    config = runner.config
    link.send(running=runner.java_pid or 0)
    for line in _where_to_look(runner.topology, config):
        display.remark(line)
    with (
        _errors_of_libraries_logged(config.home),
        _stopping_after(seconds, runner.request_stop),
        display.showing(runner.progress, processes.status, runner.threads),
    ):
        code = runner.wait()
    if isinstance(runner.failure, SparkEnded):
        link.send(ended=runner.failure.problem)
        _end_now(1)
    for failure in runner.failures[1:]:
        display.remark(str(failure))
    if runner.failure is not None:
        raise runner.failure
    display.remark(f"{runner.topology.app_name} stopped")
    return code


def _received(link: Link) -> dict[str, Any]:
    try:
        answer = link.receive()
    except EOFError:
        _end_now(1)
    assert answer is not None
    return answer


def _listen(link: Link, display: Display) -> None:
    """Print what the supervisor tells. Without the supervisor nothing keeps the services up, so the driver ends."""
    try:
        while (answer := link.receive()) is not None:
            display.remark(answer["notice"])
    except EOFError:
        _end_now(1)


def _end_now(code: int) -> NoReturn:
    """Without what Python does at its exit: parts of it wait for a Java process that has ended, and complain."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def _errors_of_libraries_logged(home: Path) -> Iterator[None]:
    """If Java dies, threads of PySpark and Py4J print tracebacks: they belong in the log, not in the live table."""
    ours = sys.stderr
    with spark_log_path(home).open("a", buffering=1) as log:
        sys.stderr = log
        try:
            yield
        finally:
            sys.stderr = ours


@contextmanager
def _stopping_after(seconds: float | None, stop: Callable[[], None]) -> Iterator[None]:
    if seconds is None:
        yield
        return
    timer = Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _where_to_look(topology: "Topology", config: "RunConfig") -> Iterator[str]:
    from headrace.engine import written_topics

    names = [node.name for node in (*topology.queries, *topology.workers)]
    yield f"{topology.app_name} runs: {', '.join(names)}; Ctrl-C stops it"
    topics = list(dict.fromkeys(topic for query in topology.queries for topic in written_topics(topology, query)))
    if topics:
        yield f"  topics: headrace consume {topics[0]} --from beginning --kafka {config.kafka_address}"
    if views := _views(topology):
        yield f"  tables: psql '{config.postgres_dsn}' ({', '.join(view.table_name for view in views)})"
    yield f"  Spark's log: {spark_log_path(config.home)}"


def _views(topology: "Topology") -> "list[QueryNode]":
    return [query for query in topology.queries if query.table_name]


@contextmanager
def _stops() -> Iterator[None]:
    """Before the queries run, SIGTERM ends the process where it is; then the runner lets batches finish first."""

    def on_signal(_: int, __: FrameType | None) -> None:
        raise Stopped

    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
