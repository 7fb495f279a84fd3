"""Starting an app: the one way for `headrace run`, `app.running` and the harness of tests."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.config.reachability import RESTART_SECONDS, check_reachable
from headrace.config.run import Offsets, RunConfig
from headrace.engine.run.runner import Runner
from headrace.engine.run.topics import read_topics
from headrace.services.children import children_of
from headrace.services.describing import with_captures_described
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
    starts_over: StartsOver = lambda _: {},
    fetching: "Progress | None" = None,
    remark: Callable[[str], None] = lambda _: None,
) -> Iterator[Runner]:
    """Run an app until the end of the `with` block.

    It takes the app's lock in the home folder, asks `embedded` for the addresses of services that are needed, checks
    the addresses that were given (`option` is how another one is given), resets the nodes that `starts_over` names,
    starts the queries, and notes in the home folder what they read. `processes` starts what the app needs beside its
    nodes; without it, that does not run. `remark` is told what a person should know.
    """
    topology = app if isinstance(app, Topology) else app.topology()
    with Home(config.home).running(topology.app_name) as registered:
        needs = needs_of(topology, config)
        found = embedded(needs)
        config = replace(
            config,
            kafka=config.kafka or found.kafka,
            postgres=config.postgres or found.postgres,
            create_inputs=config.create_inputs or needs.kafka,
        )
        _check_addresses(topology, config, needs, option)
        if topology.queues:
            from headrace.queues import prepare_queues

            prepare_queues(topology, config)
        topology = with_captures_described(topology, config)
        runner = Runner(topology, config, spark, keep_going=keep_going, threads=threads)
        with nullcontext() if processes is None else processes.running(children_of(topology, config)):
            try:
                try:
                    runner.start(fetching, starts_over(config))
                finally:
                    for name, place in runner.kept.items():
                        remark(f"the old checkpoint of {name} is kept in {place}")
                read = {query.name: read_topics(topology, query) for query in topology.queries}
                registered.note(runner.cluster_id, read)
                yield runner
            finally:
                runner.stop()


def _check_addresses(topology: Topology, config: RunConfig, needs: Needs, option: str) -> None:
    """Report a wrong address at once, before Spark starts."""
    if not needs.kafka:
        check_reachable(config.kafka_address, RESTART_SECONDS, option, config.security_protocol)
    if any(query.table_name for query in topology.queries):
        check_postgres(config.postgres_dsn)
