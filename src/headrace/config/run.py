"""The settings of a run: from arguments, then the environment, then headrace.toml, then defaults."""

import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from headrace.config.security import java_settings, librdkafka_settings
from headrace.errors import EngineError, InputError
from headrace.topology import Duration
from headrace.topology.nearest import did_you_mean

__all__ = ["Offsets", "RunConfig"]

FILE = "headrace.toml"
VARIABLE = "HEADRACE_"
KAFKA_SETTING = "HEADRACE_KAFKA_"
TRANSACTION_TIMEOUT = Duration.of("2 minutes")
REAL_TIME_INTERVAL = Duration.of("1 minute")
PATIENCE = Duration.of("10 minutes")

Offsets = Mapping[str, Mapping[int, int]]
"""Topic, partition, and the offset of the next record to read."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The settings of a run. An address that is None means the embedded service, which `services` starts."""

    home: Path = Path(".headrace")
    kafka: str | None = None
    spark: str | None = None
    postgres: str | None = None
    kafka_settings: Mapping[str, str] = field(default_factory=dict)
    """Passed to every Kafka client, under librdkafka's names; `java.*` only to Spark's client."""
    spark_settings: Mapping[str, str] = field(default_factory=dict)
    topic_settings: Mapping[str, str] = field(default_factory=dict)
    """For topics that Headrace creates: Kafka's topic settings, `partitions` and `replication.factor`."""
    create_inputs: bool = False
    """Whether missing input topics are created: on an embedded broker nothing else creates them."""

    markers: bool = False
    """Whether every feed with an event time is read together with its markers, by which tests move its watermark."""

    max_records_per_batch: int | None = 500_000
    """For each source: limits the size of a batch after downtime. None means no limit."""
    state_partitions: int = 2
    """The number of state and shuffle partitions. A checkpoint keeps the number it started with."""
    transaction_timeout: Duration = TRANSACTION_TIMEOUT
    """The maximum time to write a batch, and the maximum time that readers of a topic wait for a writer that died."""
    real_time_interval: Duration = REAL_TIME_INTERVAL
    """How often a real-time node writes a checkpoint."""
    attempts: int = 5
    """How many times in a row a node may fail before the app stops."""
    patience: Duration = PATIENCE
    """How long a node retries while Kafka or PostgreSQL is unavailable."""

    starting_offsets: Mapping[str, Offsets] = field(default_factory=dict)
    """By node: the offsets at which a new checkpoint starts, if not at the beginning."""

    @property
    def kafka_address(self) -> str:
        if self.kafka is None:
            raise EngineError(
                "no Kafka address was given and no broker was started", next_step="set one with --kafka HOST:PORT"
            )
        return self.kafka

    @property
    def postgres_dsn(self) -> str:
        if self.postgres is None:
            raise EngineError(
                "no PostgreSQL address was given and no server was started", next_step="set one with --postgres DSN"
            )
        return self.postgres

    def client_settings(self) -> dict[str, Any]:
        """For confluent-kafka's clients."""
        return {
            "bootstrap.servers": self.kafka_address,
            "client.id": "headrace",
            "log_level": 0,  # librdkafka's own lines say less than the errors that are raised
            **self.librdkafka_settings(),
        }

    def librdkafka_settings(self) -> dict[str, str]:
        """What was given for confluent-kafka's clients, the address aside."""
        return librdkafka_settings(self.kafka_settings)

    @property
    def security_protocol(self) -> str:
        return self.kafka_settings.get("security.protocol", "PLAINTEXT")

    def connector_options(self) -> dict[str, str]:
        """For Spark's Kafka connector, its sources and its sink alike."""
        settings = {"bootstrap.servers": self.kafka_address, **java_settings(self.kafka_settings)}
        return {f"kafka.{name}": value for name, value in settings.items()}

    @classmethod
    def load(
        cls,
        arguments: Mapping[str, Any] | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        file: Path | None = None,
    ) -> "RunConfig":
        """Read all of them. An argument that is None was not given. `file` must exist if it is given."""
        given: dict[str, Any] = {}
        for layer in (
            _from_file(file),
            _from_environment(os.environ if environment is None else environment),
            {name: value for name, value in (arguments or {}).items() if value is not None},
        ):
            for name, value in layer.items():
                given[name] = given[name] | value if name in given and name.endswith("_settings") else value
        return cls(**{name: _read(name, value) for name, value in given.items()})


READERS: Mapping[str, Callable[[Any], Any]] = {
    "home": lambda value: Path(value).expanduser(),
    "kafka": str,
    "spark": str,
    "postgres": str,
    "kafka_settings": lambda value: _flat(value),
    "spark_settings": lambda value: _flat(value),
    "topic_settings": lambda value: _flat(value),
    "create_inputs": bool,
    "max_records_per_batch": lambda value: _whole(value),
    "state_partitions": lambda value: _whole(value),
    "transaction_timeout": Duration.of,
    "real_time_interval": Duration.of,
    "attempts": lambda value: _whole(value),
    "patience": Duration.of,
}
# The settings allowed in a file or a variable; the others are for programs.
SAID = tuple(name for name in READERS if name != "create_inputs")


def _read(name: str, value: Any) -> Any:
    if name not in READERS:
        if name in {known.name for known in fields(RunConfig)}:
            return value
        raise InputError(f"unknown setting {name!r}", next_step=did_you_mean(name, READERS))
    try:
        return READERS[name](value)
    except InputError as error:
        raise InputError(f"{name}: {error.problem}", next_step=error.next_step) from error
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: {value!r} is not a valid value") from error


def _from_file(named: Path | None) -> dict[str, Any]:
    path = named or Path(FILE)
    if named is None and not path.is_file():
        return {}
    try:
        said = tomllib.loads(path.read_text())
    except OSError as error:
        raise InputError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid TOML: {error}") from error
    result = {}
    for name, value in said.items():
        known = name.replace("-", "_")
        if known not in SAID:
            raise InputError(f"{path}: unknown setting {name!r}", next_step=did_you_mean(known, SAID))
        if known.endswith("_settings"):
            if not isinstance(value, dict):
                raise InputError(f"{path}: {name} must be a table", next_step=f"write [{name}] above its settings")
            value = _flat(value)
        elif known == "home":
            # A path in a file means a path from that file, wherever the command is typed.
            value = path.absolute().parent / Path(str(value)).expanduser()
        result[known] = value
    return result


def _from_environment(variables: Mapping[str, str]) -> dict[str, Any]:
    """`HEADRACE_KAFKA` and the like; `HEADRACE_KAFKA_SASL_PASSWORD` is the client setting `sasl.password`."""
    result: dict[str, Any] = {}
    for name in SAID:
        value = variables.get(VARIABLE + name.upper())
        if value and not name.endswith("_settings"):
            result[name] = value
    settings = {
        name.removeprefix(KAFKA_SETTING).lower().replace("_", "."): value
        for name, value in variables.items()
        if name.startswith(KAFKA_SETTING)
    }
    return result | ({"kafka_settings": settings} if settings else {})


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """`security.protocol = "SSL"` without quotes is a table in a table to TOML: the name is what was meant."""
    flat: dict[str, str] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = str(value).lower() if isinstance(value, bool) else str(value)
    return flat


def _whole(value: Any) -> int:
    number = int(value)
    if number < 1:
        raise InputError(f"{value} is less than 1")
    return number
