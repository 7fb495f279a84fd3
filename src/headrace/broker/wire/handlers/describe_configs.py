"""DescribeConfigs: settings of topics, of groups and of the broker, with where each value comes from."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.config_entries import ConfigEntry, broker_entries, group_entries, topic_entries
from headrace.broker.errors import ApiError
from headrace.broker.topic_names import check_name
from headrace.broker.wire.alteration import BROKER, GROUP, TOPIC, check_broker_name, check_group_name, unserved_resource
from headrace.broker.wire.handlers import RequestContext
from headrace.broker.wire.requests import failure, unknown_topic

if TYPE_CHECKING:
    from headrace.broker.server import Broker


async def handle(broker: "Broker", request: SimpleNamespace, context: RequestContext) -> dict[str, Any]:
    results = []
    for resource in request.resources:
        answer = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
        try:
            wanted = set(resource.configuration_keys or ())
            answer["configs"] = [
                _describe(entry, request)
                for entry in _entries(broker, resource)
                if not wanted or entry.setting.name in wanted
            ]
        except ApiError as error:
            answer |= failure(error)
        results.append(answer)
    return {"results": results}


def _entries(broker: "Broker", resource: SimpleNamespace) -> Iterable[ConfigEntry]:
    if resource.resource_type == TOPIC:
        check_name(resource.resource_name)
        topic = broker.topics.get(resource.resource_name)
        if topic is None:
            raise unknown_topic(resource.resource_name)
        return topic_entries(broker.settings, topic.overrides)
    if resource.resource_type == BROKER:
        check_broker_name(broker, resource.resource_name)
        # Nameless, it holds what was altered for all brokers while they run: nothing can be.
        return broker_entries(broker.settings) if resource.resource_name else ()
    if resource.resource_type == GROUP:
        check_group_name(resource.resource_name)
        return group_entries(broker.settings, broker.groups.configs.overrides(resource.resource_name))
    raise unserved_resource(resource.resource_type)


def _describe(entry: ConfigEntry, request: SimpleNamespace) -> dict[str, Any]:
    synonyms = entry.synonyms if request.include_synonyms else ()
    return {
        "name": entry.setting.name,
        "value": entry.value,
        "read_only": entry.read_only,
        "config_source": entry.source,
        "config_type": entry.setting.type,
        "synonyms": [synonym._asdict() for synonym in synonyms],
        "documentation": entry.setting.doc if request.include_documentation else None,
    }
