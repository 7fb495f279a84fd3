"""The driver process of `headrace run`: Spark and the queries of the app, with the services of its supervisor."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Timer
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from headrace.cli.again import Again
from headrace.cli.link import Link
from headrace.cli.live import Display
from headrace.engine.spark_log import spark_log_path
from headrace.threads import Threads

if TYPE_CHECKING:
    from headrace.engine.config import Offsets, RunConfig
    from headrace.engine.jars import Jar
    from headrace.engine.runner import Runner
    from headrace.services.home import RunningApp
    from headrace.topology import App, Topology, View

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
    again = Again(topology, resets, replays, agreed)
    try:
        with _stops():
            return _run(link, app, topology, config, again, keep_going)
    except Stopped:
        return 0


def _run(link: Link, app: "App", topology: "Topology", config: "RunConfig", again: Again, keep_going: bool) -> int:
    from headrace.engine.runner import Runner
    from headrace.services import Home

    display = Display()
    home = Home(config.home)
    needs_broker = config.kafka is None
    needs_postgres = config.postgres is None and bool(_views(topology))
    with home.running(app.name) as registered:
        display.remark(f"starting {app.name} in {home.path}")
        link.send(needs={"kafka": needs_broker, "postgres": needs_postgres})
        told = _received(link)
        threads = Threads(spark_log_path(config.home))
        threads.start("supervisor", lambda: _listen(link, display))
        config = replace(
            config,
            kafka=config.kafka or told["kafka"],
            postgres=config.postgres or told["postgres"],
            create_inputs=config.create_inputs or needs_broker,
        )
        _check_reachable(topology, config, is_own_kafka=not needs_broker)
        # A driver that is restarted resumes; it does not reset its nodes once more.
        over = again.agreed(config, display) if told["first"] else {}
        runner = Runner(app, config, keep_going=keep_going, threads=threads)
        return _until_stopped(link, runner, registered, config, display, told["seconds"], over)


def _until_stopped(
    link: Link,
    runner: "Runner",
    registered: "RunningApp",
    config: "RunConfig",
    display: Display,
    seconds: float | None,
    over: "Mapping[str, Offsets | None]",
) -> int:
    def fetching(jar: "Jar", there: int, wanted: int) -> None:
        display.remark(f"fetching {jar}, {there + 1} of {wanted} (once)")

    from headrace.engine.running import SparkEnded
    from headrace.engine.topics import read_topics

    try:
        try:
            runner.start(fetching, over)
        finally:
            for name, place in runner.kept.items():
                display.remark(f"the old checkpoint of {name} is kept in {place}")
        read = {query.name: read_topics(runner.topology, query) for query in runner.topology.queries}
        registered.note(runner.cluster_id, read)
        link.send(running=runner.java_pid or 0)
        for line in _where_to_look(runner.topology, config):
            display.remark(line)
        with (
            _errors_of_libraries_logged(config.home),
            _stopping_after(seconds, runner.request_stop),
            display.showing(runner.progress, runner.threads),
        ):
            code = runner.wait()
    finally:
        runner.stop()
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
        told = link.receive()
    except EOFError:
        _end_now(1)
    assert told is not None
    return told


def _listen(link: Link, display: Display) -> None:
    """Print what the supervisor tells. Without the supervisor nothing keeps the services up, so the driver ends."""
    try:
        while (told := link.receive()) is not None:
            display.remark(told["notice"])
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
    from headrace.engine.topics import written_topics

    yield f"{topology.app_name} runs: {', '.join(query.name for query in topology.queries)}; Ctrl-C stops it"
    topics = list(dict.fromkeys(topic for query in topology.queries for topic in written_topics(topology, query)))
    if topics:
        yield f"  topics: headrace consume {topics[0]} --from beginning --kafka {config.kafka_address}"
    if views := _views(topology):
        yield f"  tables: psql '{config.postgres_dsn}' ({', '.join(view.table_name for view in views)})"
    yield f"  Spark's log: {spark_log_path(config.home)}"


def _check_reachable(topology: "Topology", config: "RunConfig", is_own_kafka: bool) -> None:
    """Report a wrong address at once, before Spark starts."""
    from headrace.engine.reaching import RESTART_SECONDS, check_reachable

    if is_own_kafka:
        check_reachable(config.kafka_address, RESTART_SECONDS, security_protocol=config.security_protocol)
    if _views(topology):
        from headrace.tables import check_postgres

        check_postgres(config.postgres_dsn)


def _views(topology: "Topology") -> "list[View]":
    from headrace.topology import View

    return [query for query in topology.queries if isinstance(query, View)]


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
