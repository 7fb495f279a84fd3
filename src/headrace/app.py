"""The app as its users have it: what `topology` declares, and the clients that send to it and read from it."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from headrace import topology
from headrace.engine.config import RunConfig
from headrace.topology import Feed
from headrace.topology.schema import SchemaLike

if TYPE_CHECKING:
    from headrace.clients import Consumer, Producer, Record

__all__ = ["App"]


class App(topology.App):
    """A pipeline: topics and files that feed it, and functions that make streams and views of them.

    Its clients find Kafka where `headrace run` does: at `kafka`, else at HEADRACE_KAFKA, else where headrace.toml
    says, else in the embedded broker of the home folder, if that is up.
    """

    def producer(self, *, kafka: str | None = None) -> "Producer":
        """A producer of rows for this app's topics; send inside `with app.producer() as producer:`."""
        from headrace.clients import Producer

        return Producer(self, _config(kafka).client_settings())

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

        settings = _config(kafka).client_settings()
        return Consumer(self, topic, group, settings, schema=schema, start=start, on_rejected=on_rejected)

    def read(
        self, topic: Feed | str, *, schema: SchemaLike | None = None, kafka: str | None = None
    ) -> "Iterator[Record]":
        """All records that are in a topic now, partition by partition; then it ends. Nothing is committed."""
        from headrace.clients import read_to_end

        return read_to_end(self, topic, _config(kafka).client_settings(), schema)


def _config(kafka: str | None) -> RunConfig:
    return RunConfig.load({"kafka": kafka})
