"""`headrace produce`: lines of text become records, and each is reported."""

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from headrace import InputError, NotDelivered, TopicNotFound
from headrace.cli.options import Json, Kafka, KafkaSettings, connect
from headrace.cli.output import note, print_json
from headrace.cli.records import Headers, Record, parse_json_line, parse_plain_line

if TYPE_CHECKING:
    from confluent_kafka import KafkaError as ClientError

    from headrace.config import Cluster

SHOWN_FAILURES = 5
FLUSH_SECONDS_AFTER_INTERRUPT = 5.0


class Acks(StrEnum):
    """How many replicas must acknowledge a record."""

    none = "0"
    leader = "1"
    all = "all"


class Compression(StrEnum):
    """The codecs of Kafka's record batches."""

    none = "none"
    gzip = "gzip"
    snappy = "snappy"
    lz4 = "lz4"
    zstd = "zstd"


def run(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE]...", help="Files to read lines from. Default, or -: stdin.")
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", metavar="TEXT", help="The text between key and value.")
    ] = None,
    json_lines: Annotated[
        bool,
        typer.Option("--json-lines", help="Each line is an object with key, value, headers, partition, timestamp."),
    ] = False,
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="A header for every record. Repeatable.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="The partition to write to. Default: by the key's hash.")
    ] = None,
    create: Annotated[bool, typer.Option("--create", help="Create the topic if it does not exist.")] = False,
    acks: Annotated[Acks, typer.Option("--acks", help="How many replicas must acknowledge a record.")] = Acks.all,
    compression: Annotated[Compression, typer.Option("--compression")] = Compression.none,
    json: Json = False,
    kafka: Kafka = None,
    kafka_set: KafkaSettings = None,
) -> int:
    """Send lines as records. Exits 0 only if all were acknowledged."""
    if json_lines and key_separator is not None:
        raise typer.BadParameter("--key-separator cannot be used with --json-lines")
    if key_separator == "":
        raise typer.BadParameter("the separator is empty", param_hint="--key-separator")
    headers = _parse_headers(header)
    separator = None if key_separator is None else key_separator.encode()
    parse = (
        partial(parse_json_line, headers=headers)
        if json_lines
        else partial(parse_plain_line, separator=separator, headers=headers)
    )
    cluster = connect(kafka, kafka_set)
    _ensure_topic(cluster, topic, create)
    delivery = _Delivery(cluster, topic, acks, compression)
    interrupted = False
    bad_line: InputError | None = None
    try:
        for place, line in _lines(files or [Path("-")]):
            try:
                record = parse(line)
            except InputError as error:
                raise InputError(f"{place}: {error.problem}", next_step=error.next_step) from error
            delivery.send(place, record if record.partition is not None else record._replace(partition=partition))
        delivery.finish()
    except InputError as error:
        bad_line = error
        delivery.finish()
    except KeyboardInterrupt:
        interrupted = True
        delivery.finish(FLUSH_SECONDS_AFTER_INTERRUPT)
    delivery.report(json)
    if bad_line is not None:
        raise InputError(
            f"{bad_line.problem}; this line and the ones after it were not sent", next_step=bad_line.next_step
        ) from bad_line
    if interrupted:
        return 130
    if delivery.failed:
        raise NotDelivered(
            f"{delivery.failed} of {delivery.sent} records were not acknowledged by {cluster.address}",
            next_step=delivery.advice(),
        )
    return 0


def _ensure_topic(cluster: "Cluster", name: str, create: bool) -> None:
    """Without this, the broker would create a topic of whatever name was typed."""
    try:
        cluster.topic(name, "create it with: --create")
    except TopicNotFound:
        if not create:
            raise
        cluster.create(name)
        note(f"created {name}")


class _Delivery:
    """Sends records and counts what became of each."""

    def __init__(self, cluster: "Cluster", topic: str, acks: Acks, compression: Compression) -> None:
        self.sent = self.acknowledged = self.failed = 0
        self._topic = topic
        self._acks = acks
        self._failures: list[dict[str, str]] = []
        self._codes: set[str] = set()
        self._producer = cluster.producer(
            {
                "acks": acks.value,
                "enable.idempotence": acks is Acks.all,  # a retry must not write a line twice
                "compression.type": compression.value,
                "linger.ms": 5,
            }
        )

    def send(self, place: str, record: Record) -> None:
        from confluent_kafka import KafkaException

        self.sent += 1
        where: dict[str, Any] = {}
        if record.partition is not None:
            where["partition"] = record.partition
        if record.timestamp is not None:
            where["timestamp"] = record.timestamp
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    record.value,
                    record.key,
                    headers=record.headers,
                    on_delivery=partial(self._on_delivery, place),
                    **where,
                )
            except BufferError:
                self._producer.poll(0.2)
                continue
            except KafkaException as error:
                self._count_failure(place, error.args[0])
            self._producer.poll(0)
            return

    def finish(self, seconds: float = math.inf) -> None:
        """Wait for the answers still due; librdkafka gives up on its own after message.timeout.ms."""
        deadline = time.monotonic() + seconds
        while (left := self._producer.flush(0.2)) and time.monotonic() < deadline:
            pass  # in short turns, so that Ctrl-C gets through
        self.failed += left

    def report(self, as_json: bool) -> None:
        if as_json:
            print_json(
                {
                    "topic": self._topic,
                    "sent": self.sent,
                    "acknowledged": self.acknowledged,
                    "failed": self.failed,
                    "failures": self._failures,
                }
            )
            return
        for failure in self._failures:
            note(f"{failure['line']}: {failure['reason']}")
        word = "sent (with acks=0 nothing is acknowledged)" if self._acks is Acks.none else "acknowledged"
        note(f"{self.acknowledged} of {self.sent} records {word}")

    def advice(self) -> str:
        if "_MSG_TIMED_OUT" in self._codes:
            return "check the connection with: headrace doctor"
        if "MSG_SIZE_TOO_LARGE" in self._codes:
            return "for larger records set --kafka-set message.max.bytes=N and the topic's max.message.bytes"
        if self._codes & {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"}:
            return f"list the partitions with: headrace topics describe {self._topic}"
        return "the reasons are printed above"

    def _on_delivery(self, place: str, error: "ClientError | None", _message: Any) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self._count_failure(place, error)

    def _count_failure(self, place: str, error: "ClientError") -> None:
        from headrace.config import reason

        self.failed += 1
        self._codes.add(error.name())
        if len(self._failures) < SHOWN_FAILURES:
            self._failures.append({"line": place, "reason": reason(error)})


def _parse_headers(items: list[str] | None) -> Headers:
    headers: Headers = []
    for item in items or []:
        name, equals, value = item.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{item!r} is not NAME=VALUE", param_hint="--header")
        headers.append((name, value.encode()))
    return headers


def _lines(files: list[Path]) -> Iterator[tuple[str, bytes]]:
    """Each line without its newline, and where it stands."""
    for path in files:
        name = "stdin" if path == Path("-") else str(path)
        with _opened(path) as stream:
            for number, line in enumerate(stream, start=1):
                yield f"{name} line {number}", line.removesuffix(b"\n")


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    if path == Path("-"):
        yield sys.stdin.buffer
        return
    try:
        stream = path.open("rb")
    except OSError as error:
        raise InputError(f"{path} cannot be read ({(error.strerror or str(error)).lower()})") from error
    with stream:
        yield stream
