"""Options that several commands share, and how their values are read."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headrace.cli.kafka import Cluster

DEFAULT_KAFKA = "127.0.0.1:9092"

Kafka = Annotated[
    str,
    typer.Option(
        "--kafka",
        metavar="HOST:PORT",
        envvar="HEADRACE_KAFKA",
        help="Where Kafka is: Headrace's broker or any other; several with commas.",
    ),
]
KafkaSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--kafka-set",
        metavar="NAME=VALUE",
        help="A librdkafka setting, such as security.protocol=SSL. Repeatable.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]


class Isolation(StrEnum):
    """Which records of transactions a reader sees."""

    read_committed = "read_committed"
    read_uncommitted = "read_uncommitted"


def pairs(items: list[str] | None, option: str) -> dict[str, str]:
    """`NAME=VALUE` options as a dict; the value may be empty and may hold further equal signs."""
    result: dict[str, str] = {}
    for item in items or []:
        name, equals, value = item.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{item!r} is not NAME=VALUE", param_hint=option)
        result[name.strip()] = value
    return result


def connect(kafka: str, kafka_set: list[str] | None) -> "Cluster":
    """The cluster that `--kafka` and `--kafka-set` name."""
    settings = pairs(kafka_set, "--kafka-set")
    from headrace.cli.kafka import Cluster

    return Cluster(kafka, settings)
