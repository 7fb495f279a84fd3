"""`headrace run`: an app from a Python file, until it is stopped."""

from typing import Annotated

import typer

from headrace.cli.apps import (
    AppName,
    ConfigFile,
    File,
    HomeFolder,
    KafkaAddress,
    KafkaSet,
    PostgresDsn,
    SparkMaster,
    SparkSet,
    load_config,
)
from headrace.cli.options import Yes, check_address


def run(
    file: File,
    app: AppName = None,
    kafka: KafkaAddress = None,
    kafka_set: KafkaSet = None,
    spark: SparkMaster = None,
    spark_set: SparkSet = None,
    postgres: PostgresDsn = None,
    home: HomeFolder = None,
    config: ConfigFile = None,
    reset: Annotated[
        list[str] | None,
        typer.Option("--reset", metavar="NODE", help="Start a node over: reprocess all its input. Repeatable."),
    ] = None,
    replay: Annotated[
        list[str] | None,
        typer.Option(
            "--replay",
            metavar="NODE:TOPIC=TIME",
            help="Let a node read a topic again from a time, such as 2026-01-01T00:00. Repeatable.",
        ),
    ] = None,
    yes: Yes = False,
    keep_going: Annotated[
        bool,
        typer.Option("--keep-going", help="If a node fails, keep running the nodes that do not depend on it."),
    ] = False,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0.1, help="Stop after this many seconds.", show_default=False)
    ] = None,
    link: Annotated[int | None, typer.Option("--link", hidden=True)] = None,
) -> int:
    """Run an app until it is stopped. Services without an address are embedded, and started if they are not up."""
    check_address(kafka)
    settings = load_config(
        file=config, home=home, kafka=kafka, kafka_set=kafka_set, spark=spark, spark_set=spark_set, postgres=postgres
    )
    if link is None:
        from headrace.cli.supervisor import Supervisor

        return Supervisor(settings, seconds).run()
    from headrace.cli.driver import drive
    from headrace.link import Link

    return drive(
        Link.inherited(link), settings, file, app, reset or [], replay or [], agreed=yes, keep_going=keep_going
    )
