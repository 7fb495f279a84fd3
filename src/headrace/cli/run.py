"""`headrace run`: a file of functions as a pipeline, until it is stopped."""

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from threading import Timer
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.again import Again
from headrace.cli.apps import (
    AppName,
    ConfigFile,
    File,
    HomeFolder,
    KafkaAddress,
    KafkaSet,
    PostgresDsn,
    SparkMaster,
    SparkSet,
    load_config,
)
from headrace.cli.live import Display
from headrace.cli.options import Yes, check_address

if TYPE_CHECKING:
    from headrace.engine.config import Offsets, RunConfig
    from headrace.engine.jars import Jar
    from headrace.topology import App, Topology, View


class Stopped(BaseException):
    """SIGTERM or Ctrl-C before the queries run."""


def run(
    file: File,
    app: AppName = None,
    kafka: KafkaAddress = None,
    kafka_set: KafkaSet = None,
    spark: SparkMaster = None,
    spark_set: SparkSet = None,
    postgres: PostgresDsn = None,
    home: HomeFolder = None,
    config: ConfigFile = None,
    reset: Annotated[
        list[str] | None,
        typer.Option("--reset", metavar="NODE", help="Start a node over: all is read and written again. Repeatable."),
    ] = None,
    replay: Annotated[
        list[str] | None,
        typer.Option(
            "--replay",
            metavar="NODE:TOPIC=TIME",
            help="Let a node read a topic again since a time, such as 2026-01-01T00:00. Repeatable.",
        ),
    ] = None,
    yes: Yes = False,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0.1, help="Stop by itself after so long; else when told to.")
    ] = None,
) -> int:
    """Run an app until it is stopped. What no address is given for is embedded, and started if it is not up."""
    check_address(kafka)
    settings = load_config(
        file=config, home=home, kafka=kafka, kafka_set=kafka_set, spark=spark, spark_set=spark_set, postgres=postgres
    )
    from headrace.topology import load_app

    found = load_app(file, app)
    topology = found.topology()
    again = Again(topology, reset or [], replay or [], yes)
    try:
        with _stops():
            return _run(found, topology, settings, again, seconds)
    except (Stopped, KeyboardInterrupt):
        return 0


def _run(app: "App", topology: "Topology", config: "RunConfig", again: Again, seconds: float | None) -> int:
    from headrace.services import Services

    display = Display()
    services = Services(config.home)
    needs_broker = config.kafka is None
    needs_postgres = config.postgres is None and bool(_views(topology))
    with ExitStack() as stack:
        stack.enter_context(services.home.running(app.name))
        display.remark(f"starting {app.name} in {services.home.path}")
        if needs_broker or needs_postgres:
            used = services.used(kafka=needs_broker, postgres=needs_postgres, notice=display.remark)
            addresses = stack.enter_context(used)
            config = replace(
                config,
                kafka=config.kafka or addresses.kafka,
                postgres=config.postgres or addresses.postgres,
                create_inputs=config.create_inputs or needs_broker,
            )
        _check_reachable(topology, config, is_own_kafka=not needs_broker)
        over = again.agreed(config, display)
        return _until_stopped(app, config, display, seconds, over)


def _until_stopped(
    app: "App", config: "RunConfig", display: Display, seconds: float | None, over: "Mapping[str, Offsets | None]"
) -> int:
    from headrace.engine.runner import Runner
    from headrace.engine.spark_log import spark_log

    def fetching(jar: "Jar", there: int, wanted: int) -> None:
        display.remark(f"fetching {jar}, {there + 1} of {wanted} (once)")

    runner = Runner(app, config)
    try:
        try:
            with spark_log(config.home):
                runner.start(fetching, over)
        finally:
            for name, place in runner.kept.items():
                display.remark(f"the old checkpoint of {name} is kept in {place}")
        for line in _where_to_look(runner.topology, config):
            display.remark(line)
        with _stopping_after(seconds, runner.request_stop), display.showing(runner.progress):
            code = runner.wait()
    finally:
        runner.stop()
    if runner.failure is not None:
        raise runner.failure
    display.remark(f"{app.name} stopped")
    return code


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
    from headrace.engine.spark_log import spark_log_path
    from headrace.engine.topics import written_topics

    yield f"{topology.app_name} runs: {', '.join(query.name for query in topology.queries)}; Ctrl-C stops it"
    topics = list(dict.fromkeys(topic for query in topology.queries for topic in written_topics(topology, query)))
    if topics:
        yield f"  topics: headrace consume {topics[0]} --from beginning --kafka {config.kafka_address}"
    if views := _views(topology):
        yield f"  tables: psql '{config.postgres_dsn}' ({', '.join(view.table_name for view in views)})"
    yield f"  Spark's log: {spark_log_path(config.home)}"


def _check_reachable(topology: "Topology", config: "RunConfig", is_own_kafka: bool) -> None:
    """A wrong address is a mistake to be told at once, not something to wait out."""
    from headrace.engine.reaching import RESTART_SECONDS, check_reachable

    if is_own_kafka:
        check_reachable(config.kafka_address, RESTART_SECONDS)
    if _views(topology):
        from headrace.tables import check_postgres

        check_postgres(config.postgres_dsn)


def _views(topology: "Topology") -> "list[View]":
    from headrace.topology import View

    return [query for query in topology.queries if isinstance(query, View)]


@contextmanager
def _stops() -> Iterator[None]:
    """Until the queries run, SIGTERM and Ctrl-C end the command where it is; the runner has better ways afterwards."""

    def on_signal(_: int, __: FrameType | None) -> None:
        raise Stopped

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
