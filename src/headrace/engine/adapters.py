"""The kinds of sources and sinks that Spark can read and write: each is one adapter, registered here.

A kind has two sides. In the topology it is a plain value that can be declared without Spark: a subclass of `Source`, or
of `Sink`, with its options as fields. Here it is an adapter, which is told to read or write when the app runs.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.errors import InputError
from headrace.topology import Feed, Files, PostgresSink, Rate, Sink, Source, TopicSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.config.run import RunConfig
    from headrace.engine.read.reading import Reading, SourceOffsets
    from headrace.engine.spark_private.plans import PlanNode
    from headrace.engine.write.sink import BatchSink, SinkContext

__all__ = ["SinkAdapter", "SourceAdapter", "register_sink", "register_source", "sink_adapter", "source_adapter"]

K = TypeVar("K")


class SourceAdapter(ABC):
    """How Spark reads a kind of source.

    One that is parsed (`Source.is_parsed`) gives records, with the bytes of a row in the column `value`; what cannot be
    parsed is read again with `between`. One that is not parsed gives the rows themselves, with the columns of the
    source's schema.
    """

    place: Mapping[str, str] = {}
    """The headers of a rejected record that say where it stood, and the columns they are taken from."""

    @abstractmethod
    def stream(
        self, spark: "SparkSession", reading: "Reading", config: "RunConfig", query: str, *, headers: bool = False
    ) -> "DataFrame":
        """What the query reads. `headers` says whether the headers of records are needed."""

    def between(
        self, spark: "SparkSession", reading: "Reading", config: "RunConfig", offsets: "SourceOffsets"
    ) -> "DataFrame":
        """The records of one batch again, by what the checkpoint says of it: `key`, `value`, `timestamp`, `headers`
        and the columns of `place`."""
        raise TypeError(f"{type(self).__name__} reads a source that is parsed, so it needs a method between()")

    def has(self, feed: Feed, offsets: "SourceOffsets") -> bool:
        """Whether these are offsets of the feed. The checkpoint has those of all sources of a query, by number."""
        return False

    def is_leaf(self, feed: Feed, leaf: "PlanNode") -> bool:
        """Whether a leaf of Spark's plan reads the feed."""
        return False


class SinkAdapter(ABC):
    """How the batches of a node reach a kind of sink."""

    @abstractmethod
    def sink(self, context: "SinkContext") -> "BatchSink":
        """The sink of one node. Does not connect."""


# By module and class: an adapter is loaded when an app runs that needs it, and Spark with it.
_TOPIC = "headrace.engine.read.topic_source:TopicSource"
_sources: dict[type[Source], str | SourceAdapter] = {
    Files: "headrace.engine.read.files_source:FilesSource",
    Rate: "headrace.engine.read.rate_source:RateSource",
}
_sinks: dict[type[Sink], str | SinkAdapter] = {
    TopicSink: "headrace.engine.write.topics:TopicSinkAdapter",
    PostgresSink: "headrace.engine.write.postgres_sink:PostgresSinkAdapter",
}
_loaded: dict[str, Any] = {}


def register_source(kind: type[Source], adapter: SourceAdapter) -> None:
    """Make a kind of source known. Call it where the kind is defined."""
    _sources[kind] = adapter


def register_sink(kind: type[Sink], adapter: SinkAdapter) -> None:
    """Make a kind of sink known. Call it where the kind is defined."""
    _sinks[kind] = adapter


def sink_adapter(sink: Sink) -> SinkAdapter:
    """The adapter that writes to a sink."""
    found = _registered(_sinks, sink)
    if found is None:
        raise InputError(
            f"no adapter is registered for the sink {sink.described}",
            next_step=f"call headrace.engine.register_sink({type(sink).__name__}, ...) where the kind is defined",
        )
    adapter: SinkAdapter = _load(found)
    return adapter


def source_adapter(feed: Feed) -> SourceAdapter:
    """The adapter that reads a feed. Whatever is in a topic is read alike."""
    found = _TOPIC if feed.has_topic else _registered(_sources, feed)
    if found is None:
        raise InputError(
            f"no adapter is registered for the {feed.node.kind} {feed}",
            next_step=f"call headrace.engine.register_source({type(feed).__name__}, ...) where the kind is defined",
        )
    adapter: SourceAdapter = _load(found)
    return adapter


def _registered(known: Mapping[type[K], Any], value: object) -> Any:
    return next((known[kind] for kind in type(value).__mro__ if kind in known), None)


def _load(adapter: Any) -> Any:
    if not isinstance(adapter, str):
        return adapter
    if adapter not in _loaded:
        module, _, name = adapter.partition(":")
        _loaded[adapter] = getattr(import_module(module), name)()
    return _loaded[adapter]
