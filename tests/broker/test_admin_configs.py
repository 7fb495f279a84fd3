"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs: sources, types, synonyms, and what is refused."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.config import ConfigSource, ConfigType
from headrace.broker.errors import ErrorCode
from headrace.broker.settings import BROKER_SETTINGS, TOPIC_SETTINGS
from tests.broker.node import Node, on_node

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
DYNAMIC, STATIC, DEFAULT = (
    ConfigSource.DYNAMIC_TOPIC_CONFIG,
    ConfigSource.STATIC_BROKER_CONFIG,
    ConfigSource.DEFAULT_CONFIG,
)


async def describe(node: Node, kind: int, name: str, version: int = 4, **fields: Any) -> SimpleNamespace:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": fields.pop("keys", None)}
    answer = await node.call("describe_configs", version, {"resources": [resource], **fields})
    (result,) = answer.results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result  # type: ignore[no-any-return]


def by_name(result: SimpleNamespace) -> dict[str, SimpleNamespace]:
    assert result.error_code == 0, result
    return {entry.name: entry for entry in result.configs}


async def increment(
    node: Node, name: str, *operations: tuple[str, int, str | None], version: int = 1, validate_only: bool = False
) -> tuple[int, str | None]:
    configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in operations]
    resource = {"resource_type": TOPIC, "resource_name": name, "configs": configs}
    body = {"resources": [resource], "validate_only": validate_only}
    (response,) = (await node.call("incremental_alter_configs", version, body)).responses
    return response.error_code, response.error_message


async def replace(
    node: Node, kind: int, name: str, configs: dict[str, str | None], version: int = 2, validate_only: bool = False
) -> tuple[int, str | None]:
    listed = [{"name": key, "value": value} for key, value in configs.items()]
    resource = {"resource_type": kind, "resource_name": name, "configs": listed}
    body = {"resources": [resource], "validate_only": validate_only}
    (response,) = (await node.call("alter_configs", version, body)).responses
    assert (response.resource_type, response.resource_name) == (kind, name)
    return response.error_code, response.error_message


@on_node(log_retention_hours="2", compression_type="lz4")
async def test_a_topic_is_described_in_every_version(node: Node) -> None:
    await node.topics.create("a", 1, {"segment.bytes": "2048"})
    for version in (1, 2, 3, 4):
        entries = by_name(await describe(node, TOPIC, "a", version))
        assert set(entries) == set(TOPIC_SETTINGS)
        expected = {
            "segment.bytes": ("2048", DYNAMIC, ConfigType.INT),
            "retention.ms": ("7200000", STATIC, ConfigType.LONG),
            "compression.type": ("lz4", STATIC, ConfigType.STRING),
            "cleanup.policy": ("delete", DEFAULT, ConfigType.LIST),
            "retention.bytes": ("-1", DEFAULT, ConfigType.LONG),
        }
        for name, (value, source, kind) in expected.items():
            entry = entries[name]
            assert (entry.value, entry.config_source, entry.read_only, entry.is_sensitive) == (
                value,
                source,
                False,
                False,
            )
            assert entry.synonyms == []
            if version >= 3:
                assert entry.config_type == kind
                assert entry.documentation is None


@on_node(log_retention_hours="2", log_retention_minutes="3")
async def test_synonyms_are_all_that_could_give_the_value(node: Node) -> None:
    await node.topics.create("a", 1, {"retention.ms": "7"})
    await node.topics.create("b", 1)
    asked = {"include_synonyms": True, "include_documentation": True, "keys": ["retention.ms"]}
    broker = [
        ("log.retention.minutes", "3", STATIC),
        ("log.retention.hours", "2", STATIC),
        ("log.retention.hours", "168", DEFAULT),
    ]
    for name, expected in (("a", [("retention.ms", "7", DYNAMIC), *broker]), ("b", broker)):
        (entry,) = by_name(await describe(node, TOPIC, name, **asked)).values()
        assert [(s.name, s.value, s.source) for s in entry.synonyms] == expected
        assert entry.config_source == expected[0][2]
        assert entry.documentation == TOPIC_SETTINGS["retention.ms"].doc
    assert entry.value == "180000"


@on_node(num_partitions="3")
async def test_the_broker_is_described(node: Node) -> None:
    entries = by_name(await describe(node, BROKER, "1", include_synonyms=True))
    assert set(entries) == set(BROKER_SETTINGS)
    assert all(entry.read_only for entry in entries.values())
    assert (entries["num.partitions"].value, entries["num.partitions"].config_source) == ("3", STATIC)
    assert (entries["auto.create.topics.enable"].value, entries["auto.create.topics.enable"].config_source) == (
        "true",
        DEFAULT,
    )
    assert entries["log.retention.ms"].value is None
    assert [(s.name, s.source) for s in entries["log.retention.ms"].synonyms] == [("log.retention.hours", DEFAULT)]
    assert [(s.name, s.value, s.source) for s in entries["num.partitions"].synonyms] == [
        ("num.partitions", "3", STATIC),
        ("num.partitions", "1", DEFAULT),
    ]
    assert by_name(await describe(node, BROKER, "")) == {}


@on_node()
async def test_descriptions_are_refused_as_kafka_does(node: Node) -> None:
    cases = [
        (TOPIC, "none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "bad name", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "2", ErrorCode.INVALID_REQUEST),
        (BROKER, "one", ErrorCode.INVALID_REQUEST),
        (BROKER_LOGGER, "1", ErrorCode.INVALID_REQUEST),
        (GROUP, "", ErrorCode.INVALID_REQUEST),
        (CLIENT_METRICS, "m", ErrorCode.INVALID_REQUEST),
        (99, "x", ErrorCode.INVALID_REQUEST),
    ]
    for kind, name, code in cases:
        result = await describe(node, kind, name)
        assert (result.error_code, result.configs) == (code, []), (kind, name)
        assert result.error_message


@on_node()
async def test_chosen_keys_only(node: Node) -> None:
    await node.topics.create("a", 1)
    assert set(by_name(await describe(node, TOPIC, "a", keys=["segment.ms", "unheard.of"]))) == {"segment.ms"}
    assert set(by_name(await describe(node, TOPIC, "a", keys=[]))) == set(TOPIC_SETTINGS)


@on_node()
async def test_alter_replaces_everything_in_every_version(node: Node) -> None:
    topic = await node.topics.create("a", 1, {"retention.ms": "1"})
    for version in (0, 1, 2):
        assert await replace(node, TOPIC, "a", {"segment.ms": f"{version + 5}"}, version) == (0, None)
        assert topic.overrides == {"segment.ms": f"{version + 5}"}
        assert node.partition("a").config.segment_ms == version + 5
    assert await replace(node, TOPIC, "a", {"segment.ms": "99"}, validate_only=True) == (0, None)
    assert topic.config.segment_ms == 7
    assert await replace(node, TOPIC, "a", {}) == (0, None)
    assert topic.overrides == {}


@on_node()
async def test_alter_is_refused_as_kafka_does(node: Node) -> None:
    topic = await node.topics.create("a", 1, {"retention.ms": "1"})
    cases: list[tuple[int, str, dict[str, str | None], ErrorCode, str]] = [
        (TOPIC, "none", {"retention.ms": "2"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "none"),
        (TOPIC, "", {"retention.ms": "2"}, ErrorCode.INVALID_REQUEST, "Default topic resources"),
        (TOPIC, "a", {"retention.ms": None}, ErrorCode.INVALID_REQUEST, "Null value not supported for : retention.ms"),
        (TOPIC, "a", {"retention.ms": "x"}, ErrorCode.INVALID_CONFIG, "Not a number of type LONG"),
        (TOPIC, "a", {"flush.messages": "1"}, ErrorCode.INVALID_CONFIG, "Unknown topic config name: flush.messages"),
        (TOPIC, "a", {"cleanup.policy": "compact"}, ErrorCode.INVALID_CONFIG, "String must be one of: delete"),
        (BROKER, "1", {"num.partitions": "2"}, ErrorCode.INVALID_REQUEST, "Cannot update these configs dynamically"),
        (BROKER, "", {"num.partitions": "2"}, ErrorCode.INVALID_REQUEST, "Cannot update these configs dynamically"),
        (BROKER, "1", {"num.partition": "2"}, ErrorCode.INVALID_CONFIG, "num.partitions"),
        (BROKER, "5", {}, ErrorCode.INVALID_REQUEST, "Unexpected broker id, expected 1"),
        (GROUP, "g", {"consumer.session.timeout.ms": "1"}, ErrorCode.INVALID_CONFIG, "share.session.timeout.ms"),
        (GROUP, "g", {"share.record.lock.duration.ms": "14999"}, ErrorCode.INVALID_CONFIG, "15000"),
        (GROUP, "g", {"share.auto.offset.reset": "by_duration:1h"}, ErrorCode.INVALID_CONFIG, "PT1H"),
        (GROUP, "", {"share.delivery.count.limit": "3"}, ErrorCode.INVALID_REQUEST, "Default group"),
        (0, "x", {}, ErrorCode.INVALID_REQUEST, "Unknown resource type 0"),
    ]
    for kind, name, configs, code, message in cases:
        error_code, error_message = await replace(node, kind, name, configs)
        assert error_code == code, (kind, name, configs)
        assert message in (error_message or "")
    assert topic.overrides == {"retention.ms": "1"}


@on_node()
async def test_a_resource_named_twice_is_refused(node: Node) -> None:
    topic = await node.topics.create("a", 1)
    await node.topics.create("b", 1)

    def resource(name: str, *values: str) -> dict[str, Any]:
        configs = [{"name": "retention.ms", "value": value} for value in values]
        return {"resource_type": TOPIC, "resource_name": name, "configs": configs}

    for api in ("alter_configs", "incremental_alter_configs"):
        resources = [resource("a", "1"), resource("b", "3"), resource("a", "2")]
        answer = await node.call(api, 1, {"resources": resources})
        assert [response.error_code for response in answer.responses] == [42, 0, 42]
        answer = await node.call(api, 1, {"resources": [resource("a", "1", "2")]})
        assert answer.responses[0].error_message == "Error due to duplicate config keys"
    assert topic.overrides == {}


@on_node()
async def test_increments_in_every_version(node: Node) -> None:
    topic = await node.topics.create("a", 1, {"retention.ms": "1"})
    for version in (0, 1):
        assert await increment(node, "a", ("segment.ms", SET, "5"), version=version) == (0, None)
        assert topic.overrides == {"retention.ms": "1", "segment.ms": "5"}
        assert await increment(node, "a", ("segment.ms", DELETE, None), version=version) == (0, None)
        assert topic.overrides == {"retention.ms": "1"}
    assert await increment(node, "a", ("never.set", DELETE, None)) == (0, None)
    assert await increment(node, "a", ("retention.ms", SET, "9"), validate_only=True) == (0, None)
    assert topic.config.retention_ms == 1


@on_node()
async def test_lists_are_appended_to_and_subtracted_from(node: Node) -> None:
    topic = await node.topics.create("a", 1)
    assert await increment(node, "a", ("cleanup.policy", APPEND, "delete")) == (0, None)
    assert topic.overrides == {"cleanup.policy": "delete"}
    code, message = await increment(node, "a", ("cleanup.policy", APPEND, "compact"))
    assert code == ErrorCode.INVALID_CONFIG
    assert "compaction is not supported yet" in (message or "")
    code, message = await increment(node, "a", ("cleanup.policy", SUBTRACT, "delete"))
    assert code == ErrorCode.INVALID_CONFIG
    assert "must not be empty" in (message or "")
    assert await increment(node, "a", ("cleanup.policy", SUBTRACT, "compact")) == (0, None)
    assert topic.overrides == {"cleanup.policy": "delete"}


@on_node()
async def test_increments_are_refused_as_kafka_does(node: Node) -> None:
    topic = await node.topics.create("a", 1)
    cases: list[tuple[tuple[str, int, str | None], ErrorCode, str]] = [
        (("retention.ms", SET, None), ErrorCode.INVALID_REQUEST, "Null value not supported for : retention.ms"),
        (("retention.ms", SET, "-2"), ErrorCode.INVALID_CONFIG, "Value must be at least -1"),
        (("retention.ms", APPEND, "1"), ErrorCode.INVALID_CONFIG, "Can't APPEND to key retention.ms"),
        (("unheard.of", SUBTRACT, "1"), ErrorCode.INVALID_CONFIG, "Can't SUBTRACT to key unheard.of"),
        (("retention.ms", 9, "1"), ErrorCode.INVALID_REQUEST, "Unknown operations type 9"),
        (("preallocate", SET, "true"), ErrorCode.INVALID_CONFIG, "Unknown topic config name: preallocate"),
    ]
    for operation, code, message in cases:
        error_code, error_message = await increment(node, "a", operation)
        assert error_code == code, operation
        assert message in (error_message or "")
    # One bad change of a resource, and none of its changes is made.
    code, _ = await increment(node, "a", ("segment.ms", SET, "5"), ("segment.bytes", SET, "x"))
    assert code == ErrorCode.INVALID_CONFIG
    assert topic.overrides == {}


@on_node()
async def test_nothing_can_be_deleted_from_the_broker(node: Node) -> None:
    configs = [{"name": name, "config_operation": DELETE} for name in ("num.partitions", "leader.throttled.rate")]
    resource = {"resource_type": BROKER, "resource_name": "1", "configs": configs}
    (response,) = (await node.call("incremental_alter_configs", 1, {"resources": [resource]})).responses
    assert response.error_code == 0


@on_node()
async def test_increments_at_once_lose_nothing(node: Node) -> None:
    topic = await node.topics.create("a", 1)
    names = ["retention.ms", "segment.ms", "retention.bytes", "segment.bytes", "max.message.bytes"]
    await asyncio.gather(*(increment(node, "a", (name, SET, "100")) for name in names))
    assert topic.overrides == dict.fromkeys(names, "100")


@pytest.mark.parametrize("name", sorted(TOPIC_SETTINGS))
def test_every_topic_setting_has_a_default_at_the_broker(name: str) -> None:
    setting = TOPIC_SETTINGS[name]
    assert setting.synonyms
    for synonym in setting.synonyms:
        assert synonym in BROKER_SETTINGS
    in_same_unit = BROKER_SETTINGS[setting.synonyms[0]]
    assert in_same_unit.type == setting.type
    assert in_same_unit.default in (setting.default, None)
