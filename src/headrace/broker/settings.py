"""Every setting the broker and its topics obey, under Kafka's names.

What is defined here is enforced; any other name is refused. Defaults are those of Kafka 4 unless the text
says otherwise.
"""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Mapping
from functools import cached_property

from headrace.broker.config import (
    Check,
    ConfigType,
    InvalidSetting,
    at_least,
    between,
    one_of,
    parse_all,
    setting,
    settings_of,
)
from headrace.broker.group_settings import ShareSettings

__all__ = ["BROKER_SETTINGS", "TOPIC_SETTINGS", "BrokerSettings", "InvalidSetting", "TopicConfig"]

BOOLEAN, STRING, INT, LONG, LIST = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.LIST,
)
FOREVER = (1 << 63) - 1
MAX_INT = (1 << 31) - 1
HOUR_MS = 60 * 60 * 1000
WEEK_MS = 7 * 24 * HOUR_MS
DEFAULT_MAX_MESSAGE_BYTES = 1024 * 1024 + 12
# Kafka 4 asks for 1 MiB, Kafka 3 for 14 bytes. The lower bound is kept: what runs against either keeps
# running, and a log of many small segments is how rolling and retention are tested.
MIN_SEGMENT_BYTES = 14

COMPRESSION_TYPES = one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPES = one_of("CreateTime", "LogAppendTime")


def _cleanup_policy_failure(policies: tuple[str, ...]) -> str | None:
    if not policies:
        return "The list must not be empty; the supported value is: delete"
    if "compact" in policies:
        return "String must be one of: delete (compaction is not supported yet)"
    return None if set(policies) == {"delete"} else "String must be one of: delete"


CLEANUP_POLICIES = Check("[delete]", _cleanup_policy_failure)

PROTOCOL = "PLAINTEXT://"


def is_wildcard(host: str) -> bool:
    """Whether `host` stands for every address of the machine, so that nobody can connect to it by that name."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return not host


def _listener(text: str) -> tuple[str, int] | None:
    """Host and port of `PLAINTEXT://HOST:PORT`; None if it is not of that form."""
    if not text.startswith(PROTOCOL):
        return None
    host, colon, port = text.removeprefix(PROTOCOL).rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not port.isdecimal() or int(port) > 65535 or (":" in host and not bracketed) or "," in text:
        return None
    return host.strip("[]"), int(port)


def _listener_failure(text: str) -> str | None:
    if _listener(text) is None:
        return f"Expected {PROTOCOL}HOST:PORT, such as {PROTOCOL}broker.example.com:9092"
    return None


def _advertised_failure(text: str) -> str | None:
    found = _listener(text)
    if found is None:
        return _listener_failure(text)
    if is_wildcard(found[0]):
        return "Clients cannot connect to a wildcard address; use a host name or an IP address"
    return None


LISTENER = Check(f"{PROTOCOL}HOST:PORT", _listener_failure)
ADVERTISED_LISTENER = Check(f"{PROTOCOL}HOST:PORT", _advertised_failure)


@dataclasses.dataclass(frozen=True)
class TopicConfig:
    """What one topic obeys: its own overrides over the broker's defaults."""

    cleanup_policy: tuple[str, ...] = setting(
        "cleanup.policy",
        LIST,
        ("delete",),
        "What happens to old segments. Only `delete` is supported: segments past their retention are deleted.",
        CLEANUP_POLICIES,
        ("log.cleanup.policy",),
    )
    compression_type: str = setting(
        "compression.type",
        STRING,
        "producer",
        "The codec batches are stored in. `producer` keeps what the producer chose; any other recompresses.",
        COMPRESSION_TYPES,
        ("compression.type",),
    )
    max_message_bytes: int = setting(
        "max.message.bytes",
        INT,
        DEFAULT_MAX_MESSAGE_BYTES,
        "The largest record batch accepted, in bytes, after compression.",
        at_least(0),
        ("message.max.bytes",),
    )
    message_timestamp_type: str = setting(
        "message.timestamp.type",
        STRING,
        "CreateTime",
        "Whether a record carries the time its producer gave it or the time the broker appended it.",
        TIMESTAMP_TYPES,
        ("log.message.timestamp.type",),
    )
    message_timestamp_before_max_ms: int = setting(
        "message.timestamp.before.max.ms",
        LONG,
        FOREVER,
        "How far a producer's timestamp may lie before the broker's clock. Ignored with LogAppendTime.",
        at_least(0),
        ("log.message.timestamp.before.max.ms",),
    )
    message_timestamp_after_max_ms: int = setting(
        "message.timestamp.after.max.ms",
        LONG,
        HOUR_MS,
        "How far a producer's timestamp may lie after the broker's clock. Ignored with LogAppendTime.",
        at_least(0),
        ("log.message.timestamp.after.max.ms",),
    )
    min_insync_replicas: int = setting(
        "min.insync.replicas",
        INT,
        1,
        "How many replicas must hold a record produced with acks=all. There is one: above 1, such "
        "produce requests are answered with NOT_ENOUGH_REPLICAS.",
        at_least(1),
        ("min.insync.replicas",),
    )
    retention_bytes: int = setting(
        "retention.bytes",
        LONG,
        -1,
        "The size of a partition above which its oldest segments are deleted. Negative: no limit.",
        synonyms=("log.retention.bytes",),
    )
    retention_ms: int = setting(
        "retention.ms",
        LONG,
        WEEK_MS,
        "The age above which segments are deleted. -1: no limit.",
        at_least(-1),
        ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    )
    segment_bytes: int = setting(
        "segment.bytes",
        INT,
        1024 * 1024 * 1024,
        "The size at which a new segment file is begun. (Kafka 4 wants at least 1 MiB, Kafka 3 14 bytes.)",
        at_least(MIN_SEGMENT_BYTES),
        ("log.segment.bytes",),
    )
    segment_ms: int = setting(
        "segment.ms",
        LONG,
        WEEK_MS,
        "The age at which a new segment file is begun even if the current one is not full.",
        at_least(1),
        ("log.roll.ms", "log.roll.hours"),
    )


@dataclasses.dataclass(frozen=True)
class BrokerSettings(ShareSettings):
    """The broker's settings. `BrokerSettings.parse({"num.partitions": "4"})` is how they are made."""

    advertised_listeners: str | None = setting(
        "advertised.listeners",
        STRING,
        None,
        "The address that clients are told to connect to, where it differs from `--listen`. Required where the broker "
        "listens on a wildcard address such as 0.0.0.0. Port 0 stands for the port of `--listen`.",
        ADVERTISED_LISTENER,
    )
    auto_create_topics_enable: bool = setting(
        "auto.create.topics.enable",
        BOOLEAN,
        True,
        "Whether a topic is made when a client asks for the metadata of one that does not exist.",
    )
    compression_type: str = setting(
        "compression.type",
        STRING,
        "producer",
        "The default of the topics' `compression.type`.",
        COMPRESSION_TYPES,
    )
    connections_max_idle_ms: int = setting(
        "connections.max.idle.ms",
        LONG,
        600_000,
        "Connections without a request for this long are closed. Negative: never.",
    )
    default_replication_factor: int = setting(
        "default.replication.factor",
        INT,
        1,
        "The replication factor of topics created without one. There is one node, so only 1 is valid.",
        between(1, 1),
    )
    delete_topic_enable: bool = setting(
        "delete.topic.enable",
        BOOLEAN,
        True,
        "Whether topics can be deleted. If not: TOPIC_DELETION_DISABLED.",
    )
    fetch_max_bytes: int = setting(
        "fetch.max.bytes",
        INT,
        55 * 1024 * 1024,
        "The most bytes in one Fetch response, whatever the client asks for; the first batch is always returned.",
        at_least(1024),
    )
    group_initial_rebalance_delay_ms: int = setting(
        "group.initial.rebalance.delay.ms",
        INT,
        3000,
        "How long an empty group waits for more members before its first rebalance.",
        at_least(0),
    )
    group_max_session_timeout_ms: int = setting(
        "group.max.session.timeout.ms",
        INT,
        1_800_000,
        "The longest session timeout a member may ask for.",
        at_least(1),
    )
    group_max_size: int = setting("group.max.size", INT, MAX_INT, "The most members a group can have.", at_least(1))
    group_min_session_timeout_ms: int = setting(
        "group.min.session.timeout.ms",
        INT,
        6000,
        "The shortest session timeout a member may ask for.",
        at_least(1),
    )
    listeners: str = setting(
        "listeners",
        STRING,
        f"{PROTOCOL}127.0.0.1:9092",
        "The address on which the broker accepts clients. Set by `--listen HOST:PORT`, not by `--set`.",
        LISTENER,
    )
    log_cleanup_policy: tuple[str, ...] = setting(
        "log.cleanup.policy",
        LIST,
        ("delete",),
        "The default of the topics' `cleanup.policy`.",
        CLEANUP_POLICIES,
    )
    log_message_timestamp_after_max_ms: int = setting(
        "log.message.timestamp.after.max.ms",
        LONG,
        HOUR_MS,
        "The default of the topics' `message.timestamp.after.max.ms`.",
        at_least(0),
    )
    log_message_timestamp_before_max_ms: int = setting(
        "log.message.timestamp.before.max.ms",
        LONG,
        FOREVER,
        "The default of the topics' `message.timestamp.before.max.ms`.",
        at_least(0),
    )
    log_message_timestamp_type: str = setting(
        "log.message.timestamp.type",
        STRING,
        "CreateTime",
        "The default of the topics' `message.timestamp.type`.",
        TIMESTAMP_TYPES,
    )
    log_retention_bytes: int = setting("log.retention.bytes", LONG, -1, "The default of the topics' `retention.bytes`.")
    log_retention_check_interval_ms: int = setting(
        "log.retention.check.interval.ms",
        LONG,
        300_000,
        "How often segments past their retention are deleted.",
        at_least(1),
    )
    log_retention_hours: int = setting(
        "log.retention.hours",
        INT,
        168,
        "The default of the topics' `retention.ms`, in hours, where `log.retention.minutes` is not set.",
    )
    log_retention_minutes: int | None = setting(
        "log.retention.minutes",
        INT,
        None,
        "The default of the topics' `retention.ms`, in minutes, where `log.retention.ms` is not set.",
    )
    log_retention_ms: int | None = setting(
        "log.retention.ms", LONG, None, "The default of the topics' `retention.ms`. -1: no limit."
    )
    log_roll_hours: int = setting(
        "log.roll.hours",
        INT,
        168,
        "The default of the topics' `segment.ms`, in hours, where `log.roll.ms` is not set.",
        at_least(1),
    )
    log_roll_ms: int | None = setting(
        "log.roll.ms", LONG, None, "The default of the topics' `segment.ms`.", at_least(1)
    )
    log_segment_bytes: int = setting(
        "log.segment.bytes",
        INT,
        1024 * 1024 * 1024,
        "The default of the topics' `segment.bytes`.",
        at_least(MIN_SEGMENT_BYTES),
    )
    max_connections: int = setting(
        "max.connections",
        INT,
        MAX_INT,
        "The most connections open at once; further ones are closed.",
        at_least(0),
    )
    message_max_bytes: int = setting(
        "message.max.bytes",
        INT,
        DEFAULT_MAX_MESSAGE_BYTES,
        "The default of the topics' `max.message.bytes`.",
        at_least(0),
    )
    min_insync_replicas: int = setting(
        "min.insync.replicas", INT, 1, "The default of the topics' `min.insync.replicas`.", at_least(1)
    )
    num_partitions: int = setting(
        "num.partitions", INT, 1, "The partitions of topics created without a number of them.", at_least(1)
    )
    offset_metadata_max_bytes: int = setting(
        "offset.metadata.max.bytes",
        INT,
        4096,
        "The longest metadata a committed offset may carry.",
        at_least(0),
    )
    offsets_retention_check_interval_ms: int = setting(
        "offsets.retention.check.interval.ms",
        LONG,
        600_000,
        "How often expired committed offsets are looked for.",
        at_least(1),
    )
    offsets_retention_minutes: int = setting(
        "offsets.retention.minutes",
        INT,
        7 * 24 * 60,
        "How long the committed offsets of a group without members are kept.",
        at_least(1),
    )
    producer_id_expiration_ms: int = setting(
        "producer.id.expiration.ms",
        INT,
        86_400_000,
        "How long a partition remembers an idempotent producer after its last batch.",
        at_least(1),
    )
    queued_max_request_bytes: int = setting(
        "queued.max.request.bytes",
        LONG,
        64 * 1024 * 1024,
        "The most bytes of requests held in memory; above it, sockets are not read. A single larger request "
        "is accepted alone. (Kafka's default is no limit.)",
        at_least(1),
    )
    socket_request_max_bytes: int = setting(
        "socket.request.max.bytes",
        INT,
        100 * 1024 * 1024,
        "The largest request; a connection that announces a larger one is closed.",
        at_least(1),
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        INT,
        10_000,
        "How often transactions past their timeout are aborted.",
        at_least(1),
    )
    transaction_max_timeout_ms: int = setting(
        "transaction.max.timeout.ms",
        INT,
        900_000,
        "The longest transaction timeout a producer may ask for.",
        at_least(1),
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        INT,
        3_600_000,
        "How often expired transactional ids are removed.",
        at_least(1),
    )
    transactional_id_expiration_ms: int = setting(
        "transactional.id.expiration.ms",
        INT,
        7 * 24 * HOUR_MS,
        "How long a transactional id without a transaction is remembered.",
        at_least(1),
    )
    given: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What was set, as it was written: name -> text."""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> BrokerSettings:
        """Typed and checked settings, or InvalidSetting with a message that names what is wrong."""
        settings = cls(**parse_all(BROKER_SETTINGS, given, "broker"), given=dict(given))
        retention = settings.retention_ms
        if retention != -1 and retention < 1:
            raise InvalidSetting("log.retention.ms must be unlimited (-1) or, greater than or equal to 1")
        if settings.group_min_session_timeout_ms > settings.group_max_session_timeout_ms:
            raise InvalidSetting("group.min.session.timeout.ms must not be above group.max.session.timeout.ms")
        settings.check_share()
        return settings

    @property
    def listen_address(self) -> tuple[str, int]:
        """Host and port of `listeners`."""
        found = _listener(self.listeners)
        assert found is not None, "checked when it was parsed"
        return found

    @property
    def advertised_address(self) -> tuple[str, int] | None:
        """Host and port of `advertised.listeners`, where it is set."""
        return None if self.advertised_listeners is None else _listener(self.advertised_listeners)

    @property
    def retention_ms(self) -> int:
        """The broker's default for `retention.ms`, of the three settings that can give it."""
        if self.log_retention_ms is not None:
            retention = self.log_retention_ms
        elif self.log_retention_minutes is not None:
            retention = self.log_retention_minutes * 60 * 1000
        else:
            retention = self.log_retention_hours * HOUR_MS
        return -1 if retention < 0 else retention

    @cached_property
    def topic_defaults(self) -> TopicConfig:
        """The config of a topic without overrides."""
        return TopicConfig(
            cleanup_policy=self.log_cleanup_policy,
            compression_type=self.compression_type,
            max_message_bytes=self.message_max_bytes,
            message_timestamp_type=self.log_message_timestamp_type,
            message_timestamp_before_max_ms=self.log_message_timestamp_before_max_ms,
            message_timestamp_after_max_ms=self.log_message_timestamp_after_max_ms,
            min_insync_replicas=self.min_insync_replicas,
            retention_bytes=self.log_retention_bytes,
            retention_ms=self.retention_ms,
            segment_bytes=self.log_segment_bytes,
            segment_ms=self.log_roll_hours * HOUR_MS if self.log_roll_ms is None else self.log_roll_ms,
        )

    def topic_config(self, overrides: Mapping[str, str]) -> TopicConfig:
        """The config of a topic with these overrides, or InvalidSetting."""
        if not overrides:
            return self.topic_defaults
        return dataclasses.replace(self.topic_defaults, **parse_all(TOPIC_SETTINGS, overrides, "topic"))


BROKER_SETTINGS = settings_of(BrokerSettings)
TOPIC_SETTINGS = settings_of(TopicConfig)
