"""`headrace work`: the workers of an app, without Spark, in as many processes as wanted."""

from typing import Annotated

import typer

from headrace.cli.apps import AppName, ConfigFile, File, HomeFolder, KafkaAddress, KafkaSet, load_config
from headrace.cli.options import check_address
from headrace.cli.output import note


def run(
    file: File,
    workers: Annotated[
        list[str] | None,
        typer.Option("--worker", metavar="NAME", help="Run only this worker. Repeatable. Default: all of the app."),
    ] = None,
    app: AppName = None,
    kafka: KafkaAddress = None,
    kafka_set: KafkaSet = None,
    home: HomeFolder = None,
    config: ConfigFile = None,
) -> None:
    """Run the workers of an app until they are stopped. Start it as often as you like: they share the messages."""
    check_address(kafka)
    settings = load_config(file=config, home=home, kafka=kafka, kafka_set=kafka_set)
    from headrace.queues import work_until_stopped
    from headrace.services import with_kafka
    from headrace.topology import load_app

    topology = load_app(file, app).topology()
    work_until_stopped(topology, workers or [], with_kafka(settings, "--kafka"), note)
