"""`headrace consume`: records become lines of text."""

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace import TopicNotFound
from headrace.cli.options import Isolation, Json, Kafka, KafkaSettings, connect, parse_position
from headrace.cli.output import note
from headrace.cli.records import to_json
from headrace.config import POSITION_HELP

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, TopicPartition

    from headrace.config import Cluster, TopicPosition

BATCH = 1000
POLL_SECONDS = 0.1


def run(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    group: Annotated[
        str | None,
        typer.Option("--group", metavar="NAME", help="Read as a member of this group, and commit offsets."),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="POSITION",
            help=f"{POSITION_HELP}. In a group: for partitions without a committed offset.",
        ),
    ] = "beginning",
    limit: Annotated[int | None, typer.Option("--max", min=1, metavar="N", help="Stop after N records.")] = None,
    exit_at_end: Annotated[bool, typer.Option("--exit-at-end", help="Stop at the end of the topic.")] = False,
    partitions: Annotated[
        list[int] | None,
        typer.Option("--partition", min=0, help="Read only this partition. Repeatable; not with --group."),
    ] = None,
    isolation: Annotated[
        Isolation, typer.Option("--isolation", help="Whether to show records of transactions that are not committed.")
    ] = Isolation.read_committed,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", metavar="TEXT", help="Print the key, this text, and the value."),
    ] = None,
    as_json: Json = False,
    kafka: Kafka = None,
    kafka_set: KafkaSettings = None,
) -> int:
    """Print a topic's records, one a line."""
    if group is not None and partitions:
        raise typer.BadParameter(
            "a group assigns the partitions: --partition cannot be used with --group", param_hint="--partition"
        )
    if as_json and key_separator is not None:
        raise typer.BadParameter("--key-separator cannot be used with --json")
    position = parse_position(start, "--from")
    reader = _Reader(connect(kafka, kafka_set), topic, position, isolation, group, exit_at_end)
    if group is None:
        reader.assign(partitions)
    else:
        reader.join()
    line = _json_line if as_json else _plain_line(key_separator)
    try:
        reader.print_all(line, limit)
    except KeyboardInterrupt:
        return 130
    finally:
        reader.close()
    return 0


class _Reader:
    """A consumer, where it starts, and which of its partitions it has read to the end."""

    def __init__(
        self,
        cluster: "Cluster",
        topic: str,
        position: "TopicPosition",
        isolation: Isolation,
        group: str | None,
        exit_at_end: bool,
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._position = position
        self._isolation = isolation
        self._group = group
        self._exit_at_end = exit_at_end
        self._unfinished: set[int] | None = None  # None: partitions are not known yet
        self._partitions = [partition.id for partition in cluster.topic(topic).partitions]
        self._consumer: Consumer = cluster.consumer(
            {
                # librdkafka wants a group even where none is joined
                "group.id": group or "headrace-without-group",
                "enable.auto.commit": group is not None,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "isolation.level": isolation.value,
                # the end is known once the broker has nothing to answer with, so do not let it wait for more
                "fetch.wait.max.ms": 10 if exit_at_end else 500,
            }
        )

    def assign(self, wanted: list[int] | None) -> None:
        """Read the partitions without a group."""
        missing = set(wanted or []) - set(self._partitions)
        if missing:
            raise TopicNotFound(
                f"topic {self._topic!r} has no partition {min(missing)}, it has {len(self._partitions)}",
                next_step=f"see them with: headrace topics describe {self._topic}",
            )
        self._start(self._consumer, sorted(set(wanted or self._partitions)))

    def join(self) -> None:
        """Read what the group assigns, from its committed offsets on."""
        self._consumer.subscribe([self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke)

    def print_all(self, line: "Callable[[Message], bytes]", limit: int | None) -> None:
        out = sys.stdout.buffer
        left = limit
        while left != 0 and not (self._exit_at_end and self._unfinished == set()):
            messages = self._consumer.consume(BATCH if left is None else min(BATCH, left), POLL_SECONDS)
            printed: dict[int, Message] = {}
            for message in messages:
                if self._is_record(message):
                    out.write(line(message))
                    printed[message.partition() or 0] = message
                    left = None if left is None else left - 1
            if printed:
                out.flush()  # only what is out of our hands may be committed
                if self._group is not None:
                    self._store(printed)

    def close(self) -> None:
        self._consumer.close()

    def _store(self, printed: "dict[int, Message]") -> None:
        from confluent_kafka import KafkaException

        for message in printed.values():
            try:
                self._consumer.store_offsets(message=message)
            except KafkaException:
                # The partition moved to another member meanwhile, who reads these records again.
                note(f"headrace: {self._topic}[{message.partition()}] was assigned to another member")

    def _is_record(self, message: "Message") -> bool:
        from confluent_kafka import KafkaError as ClientError

        error = message.error()
        if error is None:
            return True
        if error.code() == ClientError._PARTITION_EOF:
            if self._unfinished is not None:
                self._unfinished.discard(message.partition() or 0)
        elif not error.retriable() and error.code() != ClientError._MAX_POLL_EXCEEDED:
            raise self._cluster.explain(error, f"read topic {self._topic!r}")
        return False

    def _on_assign(self, consumer: "Consumer", partitions: "list[TopicPartition]") -> None:
        committed = consumer.committed(partitions, timeout=15)
        known = {partition.partition: partition.offset for partition in committed if partition.offset >= 0}
        self._start(consumer, [partition.partition for partition in partitions], known)

    def _on_revoke(self, _consumer: "Consumer", _partitions: "list[TopicPartition]") -> None:
        self._unfinished = None

    def _start(self, consumer: "Consumer", indexes: list[int], known: dict[int, int] | None = None) -> None:
        from confluent_kafka import IsolationLevel, TopicPartition

        known = known or {}
        fresh = [(self._topic, index) for index in indexes if index not in known]
        level = (
            IsolationLevel.READ_COMMITTED
            if self._isolation is Isolation.read_committed
            else IsolationLevel.READ_UNCOMMITTED
        )
        starts = self._position.resolve(self._cluster, fresh, isolation_level=level)
        offsets = known | {index: offset for (_, index), offset in starts.items()}
        consumer.assign([TopicPartition(self._topic, index, offsets[index]) for index in indexes])
        self._unfinished = set(indexes)


def _plain_line(separator: str | None) -> "Callable[[Message], bytes]":
    if separator is None:
        return lambda message: (message.value() or b"") + b"\n"
    between = separator.encode()
    return lambda message: (message.key() or b"") + between + (message.value() or b"") + b"\n"


def _json_line(message: "Message") -> bytes:
    from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

    kind, milliseconds = message.timestamp()
    headers: Any = message.headers() or []
    record = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": None if kind == TIMESTAMP_NOT_AVAILABLE else milliseconds,
        "key": to_json(message.key()),
        "value": to_json(message.value()),
        "headers": [[name, to_json(value)] for name, value in headers],
    }
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"
