"""`headrace broker`: the embedded log as a process of its own."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.options import DEFAULT_KAFKA, pairs


class Durability(StrEnum):
    """When a record counts as written."""

    fsync = "fsync"
    os = "os"


def run(
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="The folder for the broker's data.")],
    listen: Annotated[
        str,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="The address to listen on; port 0 picks a free port. A wildcard address such as 0.0.0.0 needs "
            "--set advertised.listeners=PLAINTEXT://HOST:PORT, the address that clients connect to.",
        ),
    ] = DEFAULT_KAFKA,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A broker setting by Kafka's name. Repeatable."),
    ] = None,
    durability: Annotated[
        Durability,
        typer.Option(
            "--durability",
            help="fsync: sync to disk before acknowledging. os: faster, but a power failure may lose records.",
        ),
    ] = Durability.fsync,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Allow an address other than loopback without TLS and SASL."),
    ] = False,
) -> int:
    """Run the broker until it is stopped. Any Kafka client can use it."""
    values = pairs(settings, "--set")
    from headrace.broker import serve

    return serve(data, listen, values, durability.value, insecure)
