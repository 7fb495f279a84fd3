"""Options that several commands share, and how their values are read."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace import InputError
from headrace.cli.output import note

if TYPE_CHECKING:
    from headrace.config import Cluster, TopicPosition

Kafka = Annotated[
    str | None,
    typer.Option(
        "--kafka",
        metavar="HOST:PORT",
        help="Kafka's address, or several with commas. Default: HEADRACE_KAFKA, headrace.toml, or the embedded broker.",
        show_default=False,
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
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


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


def connect(kafka: str | None, kafka_set: list[str] | None) -> "Cluster":
    """The cluster that `headrace run` would use here, or the one at the usual address if none is configured."""
    arguments = kafka_arguments(kafka, kafka_set)
    from headrace.config import RunConfig
    from headrace.services import find_cluster

    return find_cluster(
        RunConfig.load(arguments),
        on_lost=lambda address: note(f"headrace: {address} does not answer; retrying"),
    )


def kafka_arguments(kafka: str | None, kafka_set: list[str] | None) -> dict[str, Any]:
    """The two options as arguments of RunConfig.load."""
    given = {"kafka": kafka, "kafka_settings": pairs(kafka_set, "--kafka-set") or None}
    check_address(kafka)
    return given


def parse_position(text: str, option: str) -> "TopicPosition":
    """The value of an option that takes a position."""
    from headrace.config import TopicPosition

    try:
        return TopicPosition.parse(text)
    except InputError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def check_address(kafka: str | None) -> None:
    """Reject a value of `--kafka` that is not an address."""
    if kafka is None:
        return
    from headrace.config import addresses_of

    try:
        addresses_of(kafka)
    except InputError as error:
        raise typer.BadParameter(str(error), param_hint="--kafka") from error
