"""The public App: the declarations of `topology`, and the clients that write and read its topics."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, overload

from headrace import topology
from headrace.engine.config import RunConfig
from headrace.engine.reaching import RESTART_SECONDS, check_reachable
from headrace.topology import Feed
from headrace.topology.app import Function
from headrace.topology.declaring import KeyLike
from headrace.topology.schema import SchemaLike

if TYPE_CHECKING:
    from headrace.clients import Consumer, Producer, Receipt, Record
    from headrace.engine.progress import NodeProgress
    from headrace.engine.runner import Runner
    from headrace.tables import ViewReader

__all__ = ["App", "Running", "View"]


@dataclass(frozen=True, eq=False, kw_only=True)
class View(topology.View):
    """A function whose rows become a PostgreSQL table, `app.name`, up to date by key, and read here."""

    def get(
        self,
        key: Any,
        *,
        after: "Receipt | Sequence[Receipt] | None" = None,
        timeout: float = 30.0,
        postgres: str | None = None,
    ) -> dict[str, Any] | None:
        """The row of a key, or None. A key of several columns is a tuple, or a mapping by column.

        With `after`, it waits until the view has seen what was sent: so one reads one's own writes. NotCovered is
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
        """Rows as dicts: all, those equal to a mapping, or those of a condition in SQL with `%s` in it.

        `after` and `timeout` are those of `get`.
        """
        reader = self.reader(postgres=postgres)
        try:
            return reader.rows(where, parameters, after=after, timeout=timeout)
        finally:
            reader.close()

    def reader(self, *, postgres: str | None = None) -> "ViewReader":
        """What reads the view again and again over one connection; a thread needs its own."""
        from headrace.tables import ViewReader

        return ViewReader(_postgres_dsn(postgres), self.app_name, self.name, self.key)


class Running:
    """An app that runs in this process: where its services are, and how its nodes are doing."""

    def __init__(self, runner: "Runner", config: RunConfig) -> None:
        self.kafka = config.kafka_address
        self.postgres = config.postgres
        self._runner = runner

    def progress(self) -> "list[NodeProgress]":
        """Every node, in the order of the graph. Raises NodeFailed once one has failed for good."""
        nodes = self._runner.progress()
        for node in nodes:
            if node.state == "failed":
                self._runner.process_all_available(node.node)  # which raises what it failed of
        return nodes

    def settle(self) -> None:
        """Process all that the topics hold, and what comes of it, node by node down the graph."""
        self._runner.process_all_available()


class App(topology.App):
    """A pipeline: its input topics, and the functions that make streams, tables and views of them.

    Its clients find Kafka where `headrace run` does: at `kafka`, else at HEADRACE_KAFKA, else where headrace.toml
    says, else in the embedded broker of the home folder, if that is up. So do views with PostgreSQL.
    """

    view_type: ClassVar[type[topology.View]] = View

    if TYPE_CHECKING:

        @overload
        def view(self, function: Function, /) -> View: ...

        @overload
        def view(
            self, *, key: KeyLike = None, order_by: KeyLike = None, guarantee: str = "exactly-once"
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
        """Run the app inside a `with` block, in this process; what `headrace run` does, for programs.

        What no address is given for, here, in the environment or in headrace.toml, is embedded, under `home`. It
        starts what is not up, and stops what it started.
        """
        from headrace.engine.runner import Runner
        from headrace.engine.spark_log import spark_log
        from headrace.services import Services

        config = RunConfig.load({"home": home, "kafka": kafka, "spark": spark, "postgres": postgres})
        has_views = any(isinstance(query, topology.View) for query in self.topology().queries)
        services = Services(config.home)
        needs_broker, needs_postgres = config.kafka is None, config.postgres is None and has_views
        with ExitStack() as stack:
            stack.enter_context(services.home.running(self.name))
            if needs_broker or needs_postgres:
                embedded = stack.enter_context(services.used(kafka=needs_broker, postgres=needs_postgres))
                config = replace(
                    config,
                    kafka=config.kafka or embedded.kafka,
                    postgres=config.postgres or embedded.postgres,
                    create_inputs=needs_broker,
                )
            check_reachable(config.kafka_address, RESTART_SECONDS, "kafka=", config.security_protocol)
            runner = Runner(self, config)
            stack.callback(runner.stop)
            with spark_log(config.home):
                runner.start()
            yield Running(runner, config)

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


def _kafka_settings(kafka: str | None) -> dict[str, Any]:
    from headrace.services import with_kafka

    config = with_kafka(RunConfig.load({"kafka": kafka}), "kafka=")
    check_reachable(config.kafka_address, RESTART_SECONDS, "kafka=", config.security_protocol)
    return config.client_settings()


def _postgres_dsn(postgres: str | None) -> str:
    from headrace.services import with_postgres

    return with_postgres(RunConfig.load({"postgres": postgres}), "postgres=").postgres_dsn
