"""Starting an app: the one way for `headrace run`, `app.running` and the harness of tests."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.config.reachability import RESTART_SECONDS, check_reachable
from headrace.config.run import Offsets, RunConfig
from headrace.engine.run.runner import Runner, start_spark
from headrace.engine.run.topics import read_topics
from headrace.services.children import children_of
from headrace.services.embedded import Addresses
from headrace.services.home import Home
from headrace.supervised import Supervised
from headrace.tables import check_postgres
from headrace.threads import Threads
from headrace.topology import App, Topology, captured_databases

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.engine.run.jars import Progress

__all__ = ["Needs", "launch", "needs_of", "processes_of"]

StartsOver = Callable[[RunConfig], Mapping[str, Offsets | None]]


@dataclass(frozen=True, slots=True)
class Needs:
    """The services that an app needs and no address was given for."""

    kafka: bool
    postgres: bool


def needs_of(topology: Topology, config: RunConfig) -> Needs:
    has_tables = any(query.table_name for query in topology.queries)
    captures = any(database.address is None for database in captured_databases(topology.nodes.values()))
    return Needs(kafka=config.kafka is None, postgres=config.postgres is None and (has_tables or captures))


def processes_of(config: RunConfig, threads: Threads, remark: Callable[[str], None] = lambda _: None) -> Supervised:
    """What starts the processes of a run beside its nodes. One that fails for good is the failure of `threads`."""
    return Supervised(
        Home(config.home).logs,
        threads,
        attempts=config.attempts,
        patience=config.patience.microseconds / 1e6,
        remark=remark,
    )


@contextmanager
def launch(
    app: App | Topology,
    config: RunConfig,
    embedded: Callable[[Needs], Addresses],
    *,
    option: str = "--kafka",
    spark: "SparkSession | None" = None,
    keep_going: bool = False,
    threads: Threads | None = None,
    processes: Supervised | None = None,
    starts_over: StartsOver | None = None,
    fetching: "Progress | None" = None,
    remark: Callable[[str], None] = lambda _: None,
) -> Iterator[Runner]:
    """Run an app until the end of the `with` block.

    It takes the app's lock in the home folder, checks the addresses that were given (`option` is how another one is
    given), asks `embedded` for the addresses of services that are needed, resets the nodes that `starts_over` names,
    starts the queries, and notes in the home folder what they read. `processes` starts what the app needs beside its
    nodes; without it, that does not run. `remark` is told what a person should know.
    `embedded` is called in a thread, because Spark starts meanwhile if it can; with `starts_over` it starts later,
    because a person may be asked.
    """
    topology = app if isinstance(app, Topology) else app.topology()
    with Home(config.home).running(topology.app_name) as registered:
        needs = needs_of(topology, config)
        _check_given(topology, config, option)
        early: SparkSession | None = None
        try:
            with ThreadPoolExecutor(1, "headrace services") as pool:
                asked = pool.submit(embedded, needs)
                if spark is None and starts_over is None and _can_start_early(topology, needs):
                    early = start_spark(topology, config, fetching)
            found = asked.result()
        except BaseException:
            if early is not None:
                early.stop()
            raise
        config = replace(
            config,
            kafka=config.kafka or found.kafka,
            postgres=config.postgres or found.postgres,
            create_inputs=config.create_inputs or needs.kafka,
        )
        runner = Runner(app, config, spark or early, keep_going=keep_going, threads=threads, keeps_spark=early is None)
        with ExitStack() as stack:
            stack.callback(runner.stop)
            if processes is not None:
                stack.enter_context(processes.running(children_of(topology, config)))
                stack.callback(runner.stop)  # before what its nodes read from
            try:
                runner.start(fetching, starts_over(config) if starts_over is not None else {})
            finally:
                for name, place in runner.kept.items():
                    remark(f"the old checkpoint of {name} is kept in {place}")
            read = {query.name: read_topics(topology, query) for query in topology.queries}
            registered.note(runner.cluster_id, read)
            yield runner


def _can_start_early(topology: Topology, needs: Needs) -> bool:
    """Whether Spark can start before Kafka is there.

    A cluster's topics are checked first, and each partition that a real-time node reads takes a thread of Spark.
    """
    return needs.kafka and not any(query.is_real_time for query in topology.queries)


def _check_given(topology: Topology, config: RunConfig, option: str) -> None:
    """Report a wrong address at once, before Spark starts."""
    if config.kafka is not None:
        check_reachable(config.kafka, RESTART_SECONDS, option, config.security_protocol)
    if config.postgres is not None and any(query.table_name for query in topology.queries):
        check_postgres(config.postgres_dsn)
