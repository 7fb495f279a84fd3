"""Topics, read by Spark's Kafka connector: those of others, and what the nodes of the app write."""

import json
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from headrace.config.run import RunConfig
from headrace.engine.adapters import SourceAdapter
from headrace.engine.read.reading import PLACE_HEADERS, Reading, SourceOffsets
from headrace.engine.spark_private.plans import PlanNode
from headrace.topology import Feed

__all__ = ["TopicSource", "topic_options"]


class TopicSource(SourceAdapter):
    place = PLACE_HEADERS

    def stream(
        self, spark: SparkSession, reading: Reading, config: RunConfig, query: str, *, headers: bool = False
    ) -> DataFrame:
        topic, shape = reading.feed.topic_name, reading.shape
        # A table is read whole, before the first event that may need it, wherever events are read from.
        given = None if shape.is_table else config.starting_offsets.get(query, {}).get(topic)
        cap = None if shape.is_table else config.max_records_per_batch
        needed = headers or shape.is_table or "_headers" in shape.record_columns or reading.feed.is_diverted
        options = topic_options(reading, config) | {
            "startingOffsets": "earliest" if given is None else json.dumps({topic: given}),
            "includeHeaders": str(needed).lower(),
            **({} if cap is None else {"maxOffsetsPerTrigger": str(cap)}),
        }
        return spark.readStream.format("kafka").options(**options).load()

    def between(self, spark: SparkSession, reading: Reading, config: RunConfig, offsets: SourceOffsets) -> DataFrame:
        options = topic_options(reading, config) | _offset_options(reading.feed.topic_name, offsets)
        return spark.read.format("kafka").options(**options).load()

    def has(self, feed: Feed, offsets: SourceOffsets) -> bool:
        return isinstance(offsets.end.get(feed.topic_name), Mapping)

    def is_leaf(self, feed: Feed, leaf: PlanNode) -> bool:
        return leaf.reads_topic(feed.topic_name)


def topic_options(reading: Reading, config: RunConfig) -> dict[str, str]:
    """Of the connector, for whatever reads the feed's topic."""
    options = {
        **config.connector_options(),
        "kafka.isolation.level": "read_committed",
        "subscribe": reading.feed.topic_name,
        "includeHeaders": "true",
    }
    if not reading.real_time:
        # The default half a second would be waited out in every small batch.
        options["kafka.fetch.max.wait.ms"] = "10"
    return options


def _offset_options(topic: str, offsets: SourceOffsets) -> dict[str, str]:
    """Spark's offsets of a batch as those of a batch read; a partition that is new starts at its beginning."""
    until = offsets.end[topic]
    since = (offsets.start or {}).get(topic, {})
    return {
        "startingOffsets": json.dumps({topic: {partition: since.get(partition, -2) for partition in until}}),
        "endingOffsets": json.dumps({topic: until}),
    }
