"""The public App: the declarations of `topology`, and the clients that write and read its topics."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, overload

from headrace import topology
from headrace.config.reachability import RESTART_SECONDS, check_reachable
from headrace.config.run import RunConfig
from headrace.errors import InputError
from headrace.topology import Feed, Schema, Topology
from headrace.topology.app import Function
from headrace.topology.declaring import KeyLike
from headrace.topology.duration import DurationLike
from headrace.topology.queues import Backoff
from headrace.topology.schema import SchemaLike

if TYPE_CHECKING:
    from headrace.clients import Consumer, Producer, Receipt, Record
    from headrace.engine.run.progress import NodeProgress
    from headrace.engine.run.runner import Runner
    from headrace.queues import QueueSender
    from headrace.supervised import ProcessStatus, Supervised
    from headrace.tables import ViewReader

__all__ = ["App", "Queue", "Running", "View"]


@dataclass(frozen=True, eq=False, kw_only=True)
class View(topology.View):
    """A function whose rows become the PostgreSQL table `app.name`, updated by key; read it with these methods."""

    def get(
        self,
        key: Any,
        *,
        after: "Receipt | Sequence[Receipt] | None" = None,
        timeout: float = 30.0,
        postgres: str | None = None,
    ) -> dict[str, Any] | None:
        """The row of a key, or None. A key of several columns is a tuple, or a mapping by column.

        With `after`, it waits until the view covers these receipts, so that you read your own writes. NotCovered is
        raised if that takes longer than the timeout.
        """
        reader = self.reader(postgres=postgres)
        try:
            return reader.get(key, after=after, timeout=timeout)
        finally:
            reader.close()

    def rows(
        self,
        where: str | Mapping[str, Any] | None = None,
        parameters: Sequence[Any] = (),
        *,
        after: "Receipt | Sequence[Receipt] | None" = None,
        timeout: float = 30.0,
        postgres: str | None = None,
    ) -> list[dict[str, Any]]:
        """Rows as dicts: all, those equal to a mapping, or those of an SQL condition with `%s` parameters.

        `after` and `timeout` are as in `get`.
        """
        reader = self.reader(postgres=postgres)
        try:
            return reader.rows(where, parameters, after=after, timeout=timeout)
        finally:
            reader.close()

    def reader(self, *, postgres: str | None = None) -> "ViewReader":
        """A reader that keeps one connection for repeated reads; each thread needs its own."""
        from headrace.tables import ViewReader

        if not self.table_name:
            raise InputError(
                f"the rows of the view {self.name!r} are in {self.sink.described}, not in PostgreSQL",
                next_step="read them there",
            )
        return ViewReader(_postgres_dsn(postgres), self.app_name, self.name, self.key)


@dataclass(frozen=True, eq=False, kw_only=True)
class Queue(topology.Queue):
    """A topic whose messages are jobs for workers; send them with these methods."""

    def send(
        self,
        row: Any,
        *,
        delay: DurationLike | None = None,
        at: datetime | None = None,
        every: DurationLike | None = None,
        id: str | None = None,
        headers: Mapping[str, bytes | str | None] | None = None,
        kafka: str | None = None,
    ) -> str:
        """Send a message and wait until it is on disk. Returns its id.

        `delay` counts elapsed time, `at` follows the wall clock. With `every` the message is sent again and again, the
        first time after that time, or after `delay`, or `at` its time. A delayed message with the `id` of one that is
        pending replaces it. To send many messages, use `sender`.
        """
        from headrace.queues import shared_sender

        sender = shared_sender(self, _kafka_config(kafka))
        return sender.send(row, delay=delay, at=at, every=every, id=id, headers=headers).result()

    def cancel(self, id: str, *, kafka: str | None = None) -> None:
        """Cancel a delayed or periodic message. One that was handed over, or does not exist, is no error."""
        from headrace.queues import shared_sender

        shared_sender(self, _kafka_config(kafka)).cancel(id).result()

    def sender(self, *, kafka: str | None = None) -> "QueueSender":
        """A sender of many messages, which does not wait for each: `with jobs.sender() as sender:`."""
        from headrace.queues import QueueSender

        return QueueSender(self, _kafka_config(kafka))


class Running:
    """An app that runs in this process: its services and settings, and what its nodes do."""

    def __init__(self, runner: "Runner", processes: "Supervised") -> None:
        self.kafka = runner.config.kafka_address
        self.postgres = runner.config.postgres
        self._runner = runner
        self._processes = processes

    @property
    def topology(self) -> Topology:
        """The graph of the nodes that run."""
        return self._runner.topology

    @property
    def output_schemas(self) -> dict[str, Schema]:
        """The columns of each node or channel, as Spark analysed them."""
        return self._runner.output_schemas()

    @property
    def checkpoints(self) -> dict[str, Path]:
        """The folder of each node's checkpoint."""
        return {query.name: self._runner.checkpoints.of(query.name).folder for query in self.topology.queries}

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the run; secrets are replaced by `***`."""
        return self._runner.config.shown()

    def progress(self) -> "list[NodeProgress]":
        """Every node, in the order of the graph. Raises once the run has failed, such as NodeFailed for a node."""
        self._runner.check()
        return self._runner.progress()

    def processes(self) -> "list[ProcessStatus]":
        """The processes beside Spark, such as those of captures: name, state, pid, figures, restarts, last error."""
        return self._processes.status()

    def settle(self) -> None:
        """Process all records in the topics and their results, node by node down the graph."""
        self._runner.process_all_available()


class App(topology.App):
    """A pipeline: its input topics, and the functions that make streams, tables and views of them.

    Its clients find Kafka as `headrace run` does: at `kafka`, else at HEADRACE_KAFKA, else as headrace.toml says,
    else the embedded broker of the home folder, if it is up. Views find PostgreSQL in the same way.
    """

    view_type: ClassVar[type[topology.View]] = View
    queue_type: ClassVar[type[topology.Queue]] = Queue

    if TYPE_CHECKING:

        def queue(
            self,
            name: str,
            schema: SchemaLike,
            *,
            key: KeyLike = None,
            retries: int = 5,
            backoff: str | DurationLike | Backoff = "1s..1m",
            dead: str | None = None,
            topic: str | None = None,
        ) -> Queue: ...

        @overload
        def view(self, function: Function, /) -> View: ...

        @overload
        def view(
            self,
            *,
            key: KeyLike = None,
            order_by: KeyLike = None,
            guarantee: str = "exactly-once",
            to: Sequence[topology.Sink] = (),
            on_error: str = "stop",
        ) -> Callable[[Function], View]: ...

        def view(self, *_: Any, **__: Any) -> Any: ...

    @contextmanager
    def running(
        self,
        *,
        home: str | Path | None = None,
        kafka: str | None = None,
        spark: str | None = None,
        postgres: str | None = None,
    ) -> Iterator[Running]:
        """Run the app inside a `with` block, in this process: `headrace run` for programs.

        A service without an address here, in the environment or in headrace.toml is embedded, under `home`. Services
        that are not up are started, and stopped at the end. A failure that ended the run, such as NodeFailed, is raised
        by `progress` and `settle`, and at the end of the block.
        """
        from headrace.engine.run.spark_log import spark_log_path
        from headrace.services import Addresses, Services
        from headrace.services.launching import Needs, launch, processes_of
        from headrace.threads import Threads

        config = RunConfig.load({"home": home, "kafka": kafka, "spark": spark, "postgres": postgres})
        threads = Threads(spark_log_path(config.home))
        processes = processes_of(config, threads)
        with ExitStack() as stack:

            def embedded(needs: Needs) -> Addresses:
                if not needs.kafka and not needs.postgres:
                    return Addresses(None, None)
                used = Services(config.home).used(kafka=needs.kafka, postgres=needs.postgres, threads=threads)
                return stack.enter_context(used)

            launched = launch(self, config, embedded, option="kafka=", threads=threads, processes=processes)
            with launched as runner:
                yield Running(runner, processes)
                runner.check()

    def producer(self, *, kafka: str | None = None) -> "Producer":
        """A producer of rows for this app's topics; send inside `with app.producer() as producer:`."""
        from headrace.clients import Producer

        return Producer(self, _kafka_settings(kafka))

    def consumer(
        self,
        topic: Feed | str,
        *,
        group: str,
        schema: SchemaLike | None = None,
        start: str = "earliest",
        on_rejected: "Callable[[Record, str], None] | None" = None,
        kafka: str | None = None,
    ) -> "Consumer":
        """A consumer of a topic, a stream or a channel, as a member of a group.

        Rows are dicts by the topic's schema. What a stream's rows have is known only when Spark has analysed it:
        give `schema`, or take them as their JSON says. With a dataclass or a pydantic model as the schema, rows
        are its instances. A group that is new starts at the `start` of the topic: "earliest" or "latest". A record
        that cannot be read raises InputError, unless `on_rejected(record, reason)` takes it.
        """
        from headrace.clients import Consumer

        settings = _kafka_settings(kafka)
        return Consumer(self, topic, group, settings, schema=schema, start=start, on_rejected=on_rejected)

    def read(
        self,
        topic: Feed | str,
        *,
        schema: SchemaLike | None = None,
        on_rejected: "Callable[[Record, str], None] | None" = None,
        kafka: str | None = None,
    ) -> "Iterator[Record]":
        """All records that are in a topic now, partition by partition; then it ends. No offset is committed.

        A record that cannot be read raises InputError, unless `on_rejected(record, reason)` takes it.
        """
        from headrace.clients import read_to_end

        return read_to_end(self, topic, _kafka_settings(kafka), schema, on_rejected)


def _kafka_config(kafka: str | None) -> RunConfig:
    from headrace.services import with_kafka

    return with_kafka(RunConfig.load({"kafka": kafka}), "kafka=")


def _kafka_settings(kafka: str | None) -> dict[str, Any]:
    config = _kafka_config(kafka)
    check_reachable(config.kafka_address, RESTART_SECONDS, "kafka=", config.security_protocol)
    return config.client_settings()


def _postgres_dsn(postgres: str | None) -> str:
    from headrace.services import with_postgres

    return with_postgres(RunConfig.load({"postgres": postgres}), "postgres=").postgres_dsn
