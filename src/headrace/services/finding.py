"""The addresses of Kafka and PostgreSQL for commands that start nothing: as given, else the embedded ones if up."""

from dataclasses import replace

from headrace.config.run import RunConfig
from headrace.errors import ServiceError, Unreachable
from headrace.services.embedded import Services

__all__ = ["with_kafka", "with_postgres"]


def with_kafka(config: RunConfig, option: str) -> RunConfig:
    """The settings with an address of Kafka. `option` is how to give one, for the error."""
    if config.kafka is not None:
        return config
    embedded = Services(config.home).addresses().kafka
    if embedded is None:
        raise Unreachable(
            f"no Kafka address is given, and the embedded broker of {config.home} is not up",
            next_step=f"start it with headrace up, or give one with {option}, HEADRACE_KAFKA or headrace.toml",
        )
    return replace(config, kafka=embedded)


def with_postgres(config: RunConfig, option: str) -> RunConfig:
    """The settings with an address of PostgreSQL."""
    if config.postgres is not None:
        return config
    embedded = Services(config.home).addresses().postgres
    if embedded is None:
        raise ServiceError(
            f"no PostgreSQL address is given, and the embedded one of {config.home} is not up",
            next_step=f"start it with headrace up, or give one with {option}, HEADRACE_POSTGRES or headrace.toml",
        )
    return replace(config, postgres=embedded)
