"""Whether the broker sets a topic's timestamps: only then is a timestamp the time of ingestion."""

from collections.abc import Iterable

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource

from headrace.config.cluster import explained
from headrace.config.run import RunConfig
from headrace.errors import TopicNotFound

__all__ = ["timestamp_types"]

LIMIT = 15.0
SETTING = "message.timestamp.type"


def timestamp_types(topics: Iterable[str], config: RunConfig) -> dict[str, str]:
    """`CreateTime` or `LogAppendTime` by topic; a topic that does not exist yet is left out."""
    wanted = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in topics]
    if not wanted:
        return {}
    admin = AdminClient(config.client_settings())
    found: dict[str, str] = {}
    for resource, answer in admin.describe_configs(wanted, request_timeout=LIMIT).items():
        try:
            found[resource.name] = answer.result(LIMIT * 2)[SETTING].value
        except KafkaException as refused:
            asked = f"ask for the settings of topic {resource.name!r} at {config.kafka_address}"
            error = explained(refused.args[0], asked)
            if not isinstance(error, TopicNotFound):
                raise error from refused
    return found
