"""Settings: types, valid values, defaults and messages are Kafka's; what is not served is refused by name."""

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace
from headrace.broker.config import ConfigType, InvalidSetting, nearest
from headrace.broker.group_settings import GROUP_SETTINGS
from headrace.broker.settings import BROKER_SETTINGS, TOPIC_SETTINGS, BrokerSettings, TopicConfig
from headrace.broker.settings_page import page

SOURCES = Path(headrace.__file__).parent
PROJECT = SOURCES.parent.parent
INTEGERS = {ConfigType.INT: 31, ConfigType.LONG: 63}


def refusal(settings: dict[str, str]) -> str:
    with pytest.raises(InvalidSetting) as caught:
        BrokerSettings.parse(settings)
    return str(caught.value)


def topic_refusal(overrides: dict[str, str]) -> str:
    with pytest.raises(InvalidSetting) as caught:
        BrokerSettings().topic_config(overrides)
    return str(caught.value)


def test_defaults_are_kafkas() -> None:
    settings = BrokerSettings.parse({})
    assert settings.num_partitions == 1
    assert settings.auto_create_topics_enable is True
    assert settings.message_max_bytes == 1048588
    assert settings.topic_defaults == TopicConfig()
    assert TopicConfig().retention_ms == 604_800_000
    assert TopicConfig().segment_bytes == 1 << 30
    assert TopicConfig().message_timestamp_after_max_ms == 3_600_000


def test_every_attribute_is_its_name_with_underscores() -> None:
    for dataclass, definitions in ((BrokerSettings, BROKER_SETTINGS), (TopicConfig, TOPIC_SETTINGS)):
        attributes = {field.name for field in dataclasses.fields(dataclass)} - {"given"}
        assert attributes == {definition.attribute for definition in definitions.values()}
        for definition in definitions.values():
            assert getattr(dataclass(), definition.attribute) == definition.default


def test_values_are_typed() -> None:
    settings = BrokerSettings.parse(
        {"num.partitions": " 4 ", "auto.create.topics.enable": "FALSE", "log.retention.bytes": "-5"}
    )
    assert settings.num_partitions == 4
    assert settings.auto_create_topics_enable is False
    assert settings.log_retention_bytes == -5
    assert settings.given["num.partitions"] == " 4 "


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("num.partitions", "0", "Value must be at least 1"),
        ("num.partitions", "4.0", "Not a number of type INT"),
        ("num.partitions", "1_000", "Not a number of type INT"),
        ("num.partitions", "٣", "Not a number of type INT"),
        ("num.partitions", "", "Not a number of type INT"),
        ("num.partitions", "2147483648", "Not a number of type INT"),
        ("log.retention.bytes", "9223372036854775808", "Not a number of type LONG"),
        ("log.retention.bytes", "1" * 5000, "Not a number of type LONG"),
        ("auto.create.topics.enable", "yes", "Expected value to be either true or false"),
        ("default.replication.factor", "3", "Value must be no more than 1"),
        ("fetch.max.bytes", "10", "Value must be at least 1024"),
        (
            "compression.type",
            "brotli",
            "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer",
        ),
    ],
)
def test_bad_values_are_refused_in_kafkas_words(name: str, text: str, complaint: str) -> None:
    assert refusal({name: text}) == f"Invalid value {text} for configuration {name}: {complaint}"


def test_unknown_names_are_refused_with_the_nearest_served() -> None:
    message = refusal({"num.partition": "1"})
    assert message.startswith("Unknown broker config name: num.partition.")
    assert "num.partitions" in message
    message = topic_refusal({"retention.msec": "1"})
    assert message.startswith("Unknown topic config name: retention.msec.")
    assert "retention.ms" in message


@given(st.sampled_from(sorted(BROKER_SETTINGS)), st.integers(0, 60), st.sampled_from("xz"))
def test_a_name_mistyped_in_one_letter_is_found(name: str, at: int, letter: str) -> None:
    at %= len(name)
    typed = name[:at] + letter + name[at + 1 :]
    found = nearest(typed, BROKER_SETTINGS)
    assert found is not None
    # Of two that differ in that letter alone either will do.
    assert len(found) == len(typed)
    assert sum(one != other for one, other in zip(found, typed, strict=True)) <= 1


@given(st.sampled_from(sorted(BROKER_SETTINGS)), st.integers(-(1 << 70), 1 << 70))
def test_integers_stay_within_their_type(name: str, value: int) -> None:
    definition = BROKER_SETTINGS[name]
    bits = INTEGERS.get(definition.type)
    try:
        parsed = definition.parse(str(value))
    except InvalidSetting:
        return
    if bits is not None:
        assert parsed == value
        assert -(1 << bits) <= value < 1 << bits


@given(st.sampled_from(sorted(TOPIC_SETTINGS)), st.text())
def test_any_text_is_parsed_or_refused(name: str, text: str) -> None:
    try:
        config = BrokerSettings().topic_config({name: text})
    except InvalidSetting:
        return
    definition = TOPIC_SETTINGS[name]
    value = getattr(config, definition.attribute)
    shown = definition.text(value)
    assert shown is not None
    assert definition.parse(shown) == value


@pytest.mark.parametrize(
    ("given_", "retention_ms"),
    [
        ({}, 604_800_000),
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.minutes": "3", "log.retention.ms": "7"}, 7),
        ({"log.retention.ms": "-1"}, -1),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_retention_comes_from_the_finest_unit_that_is_set(given_: dict[str, str], retention_ms: int) -> None:
    assert BrokerSettings.parse(given_).topic_defaults.retention_ms == retention_ms


def test_a_retention_of_nothing_is_refused_for_the_broker_but_not_for_a_topic() -> None:
    assert "log.retention.ms must be unlimited (-1)" in refusal({"log.retention.ms": "0"})
    assert BrokerSettings().topic_config({"retention.ms": "0"}).retention_ms == 0


def test_session_timeouts_must_be_in_order() -> None:
    assert "group.min.session.timeout.ms" in refusal(
        {"group.min.session.timeout.ms": "10", "group.max.session.timeout.ms": "9"}
    )


def test_broker_settings_are_the_defaults_of_topics() -> None:
    settings = BrokerSettings.parse(
        {
            "log.roll.hours": "1",
            "log.segment.bytes": "1024",
            "message.max.bytes": "10",
            "compression.type": "lz4",
            "log.message.timestamp.type": "LogAppendTime",
            "log.message.timestamp.before.max.ms": "1",
            "log.message.timestamp.after.max.ms": "2",
            "min.insync.replicas": "2",
            "log.retention.bytes": "99",
            "log.retention.ms": "5",
            "log.cleanup.policy": "delete",
        }
    )
    expected = TopicConfig(
        segment_ms=3_600_000,
        segment_bytes=1024,
        max_message_bytes=10,
        compression_type="lz4",
        message_timestamp_type="LogAppendTime",
        message_timestamp_before_max_ms=1,
        message_timestamp_after_max_ms=2,
        min_insync_replicas=2,
        retention_bytes=99,
        retention_ms=5,
    )
    assert settings.topic_defaults == expected
    assert settings.topic_config({"retention.ms": "6"}) == dataclasses.replace(expected, retention_ms=6)


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete , compact"])
def test_compaction_is_refused_until_it_is_served(policy: str) -> None:
    assert topic_refusal({"cleanup.policy": policy}).endswith(
        "String must be one of: delete (compaction is not supported yet)"
    )


def test_cleanup_policy_takes_a_list() -> None:
    assert BrokerSettings().topic_config({"cleanup.policy": " delete "}).cleanup_policy == ("delete",)
    assert "must not be empty" in topic_refusal({"cleanup.policy": ""})
    assert "String must be one of: delete" in topic_refusal({"cleanup.policy": "none"})


def test_small_segments_are_allowed_down_to_kafka_3s_bound() -> None:
    assert BrokerSettings().topic_config({"segment.bytes": "14"}).segment_bytes == 14
    assert "Value must be at least 14" in topic_refusal({"segment.bytes": "13"})


def test_the_page_of_settings_is_current() -> None:
    assert (PROJECT / "docs" / "settings.md").read_text() == page()


def test_every_setting_is_read_somewhere() -> None:
    code = "\n".join(path.read_text() for path in (SOURCES / "broker").rglob("*.py"))
    broker = {d.attribute for d in BROKER_SETTINGS.values()} - set(re.findall(r"settings\.(\w+)", code))
    fed_to_topics = set(re.findall(r"self\.(\w+)", (SOURCES / "broker" / "settings.py").read_text()))
    fed_to_groups = set(re.findall(r"self\.(group_share\w+)", (SOURCES / "broker" / "group_settings.py").read_text()))
    assert broker - fed_to_topics - fed_to_groups == set()
    assert {d.attribute for d in GROUP_SETTINGS.values()} - set(re.findall(r"\.(share_\w+)", code)) == set()
    topic = {d.attribute for d in TOPIC_SETTINGS.values()} - set(re.findall(r"config\.(\w+)", code))
    # With one policy served there is nothing to ask it for.
    assert topic == {"cleanup_policy"}
