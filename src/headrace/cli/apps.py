"""Options of the commands that take an app's file, and how file and settings are read."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import pairs

if TYPE_CHECKING:
    from headrace.config import RunConfig

File = Annotated[
    Path, typer.Argument(metavar="FILE", help="The Python file that declares the app.", show_default=False)
]
AppName = Annotated[
    str | None, typer.Option("--app", metavar="NAME", help="The app to use, if the file declares several.")
]
HomeFolder = Annotated[
    Path | None,
    typer.Option("--home", metavar="DIR", help="The folder for checkpoints and embedded services. Default: .headrace."),
]
KafkaAddress = Annotated[
    str | None, typer.Option("--kafka", metavar="HOST:PORT", help="Kafka's address. Default: the embedded broker.")
]
KafkaSet = Annotated[
    list[str] | None,
    typer.Option(
        "--kafka-set", metavar="NAME=VALUE", help="A librdkafka setting, such as security.protocol=SSL. Repeatable."
    ),
]
SparkMaster = Annotated[
    str | None,
    typer.Option("--spark", metavar="MASTER", help="Spark's master, such as spark://HOST:7077. Default: local mode."),
]
SparkSet = Annotated[
    list[str] | None,
    typer.Option(
        "--spark-set", metavar="NAME=VALUE", help="A Spark setting, such as spark.driver.memory=4g. Repeatable."
    ),
]
PostgresDsn = Annotated[
    str | None,
    typer.Option("--postgres", metavar="DSN", help="PostgreSQL's connection string. Default: the embedded server."),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="The settings file. Default: headrace.toml in this folder."),
]


def load_config(
    *, file: Path | None, kafka_set: list[str] | None = None, spark_set: list[str] | None = None, **given: Any
) -> "RunConfig":
    """Arguments, then HEADRACE_* variables, then the file."""
    settings = {
        "kafka_settings": pairs(kafka_set, "--kafka-set") or None,
        "spark_settings": pairs(spark_set, "--spark-set") or None,
    }
    from headrace.config import RunConfig

    return RunConfig.load(given | settings, file=file)
