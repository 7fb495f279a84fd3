"""The settings of share groups, under Kafka's names: what the broker sets for all of them, and what one can change."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from headrace.broker.config import (
    Check,
    ConfigType,
    InvalidSetting,
    Setting,
    at_least,
    between,
    one_of,
    parse_all,
    setting,
    settings_of,
)

LATEST, EARLIEST, BY_DURATION = "latest", "earliest", "by_duration:"
READ_UNCOMMITTED, READ_COMMITTED = "read_uncommitted", "read_committed"
_DURATION = re.compile(
    r"P(?!$)(?:(?P<days>\d+)D)?(?:T(?=\d)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{1,9})?)S)?)?",
    re.ASCII | re.IGNORECASE,
)
_MOST_DIGITS = 64


def duration_ms(text: str) -> int | None:
    """The milliseconds of a duration such as PT1H30M, P2D or PT0.5S; None if it is none."""
    found = _DURATION.fullmatch(text) if len(text) <= _MOST_DIGITS else None
    if found is None:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)


def _reset_failure(text: str) -> str | None:
    if text in (LATEST, EARLIEST) or duration_ms(text.removeprefix(BY_DURATION)) is not None:
        return None
    return "Expected latest, earliest or by_duration: and a duration, such as by_duration:PT1H"


_RESETS = Check("[latest, earliest, by_duration:PnDTnHnMn.nS]", _reset_failure)


@dataclasses.dataclass(frozen=True)
class ShareSettings:
    """What the broker sets for all share groups."""

    group_share_delivery_count_limit: int = setting(
        "group.share.delivery.count.limit",
        ConfigType.INT,
        5,
        "The default of the groups' `share.delivery.count.limit`.",
        between(2, 10),
    )
    group_share_heartbeat_interval_ms: int = setting(
        "group.share.heartbeat.interval.ms",
        ConfigType.INT,
        5_000,
        "The default of the groups' `share.heartbeat.interval.ms`.",
        at_least(1),
    )
    group_share_max_heartbeat_interval_ms: int = setting(
        "group.share.max.heartbeat.interval.ms",
        ConfigType.INT,
        15_000,
        "The longest `share.heartbeat.interval.ms` a group may have.",
        at_least(1),
    )
    group_share_max_record_lock_duration_ms: int = setting(
        "group.share.max.record.lock.duration.ms",
        ConfigType.INT,
        60_000,
        "The longest `share.record.lock.duration.ms` a group may have.",
        between(30_000, 3_600_000),
    )
    group_share_max_session_timeout_ms: int = setting(
        "group.share.max.session.timeout.ms",
        ConfigType.INT,
        60_000,
        "The longest `share.session.timeout.ms` a group may have.",
        at_least(1),
    )
    group_share_max_share_sessions: int = setting(
        "group.share.max.share.sessions",
        ConfigType.INT,
        2_000,
        "The most share sessions at once, of all groups. Above it: SHARE_SESSION_LIMIT_REACHED.",
        at_least(1),
    )
    group_share_max_size: int = setting(
        "group.share.max.size",
        ConfigType.INT,
        200,
        "The most members a share group can have.",
        between(1, 1_000),
    )
    group_share_min_heartbeat_interval_ms: int = setting(
        "group.share.min.heartbeat.interval.ms",
        ConfigType.INT,
        5_000,
        "The shortest `share.heartbeat.interval.ms` a group may have.",
        at_least(1),
    )
    group_share_min_record_lock_duration_ms: int = setting(
        "group.share.min.record.lock.duration.ms",
        ConfigType.INT,
        15_000,
        "The shortest `share.record.lock.duration.ms` a group may have.",
        between(1_000, 30_000),
    )
    group_share_min_session_timeout_ms: int = setting(
        "group.share.min.session.timeout.ms",
        ConfigType.INT,
        45_000,
        "The shortest `share.session.timeout.ms` a group may have.",
        at_least(1),
    )
    group_share_partition_max_record_locks: int = setting(
        "group.share.partition.max.record.locks",
        ConfigType.INT,
        2_000,
        "The default of the groups' `share.partition.max.record.locks`.",
        between(100, 10_000),
    )
    group_share_record_lock_duration_ms: int = setting(
        "group.share.record.lock.duration.ms",
        ConfigType.INT,
        30_000,
        "The default of the groups' `share.record.lock.duration.ms`.",
        between(1_000, 3_600_000),
    )
    group_share_session_timeout_ms: int = setting(
        "group.share.session.timeout.ms",
        ConfigType.INT,
        45_000,
        "The default of the groups' `share.session.timeout.ms`.",
        at_least(1),
    )

    def group_config(self, overrides: Mapping[str, str]) -> GroupConfig:
        """The config of a group with these overrides, or InvalidSetting."""
        config = GroupConfig(
            share_delivery_count_limit=self.group_share_delivery_count_limit,
            share_heartbeat_interval_ms=self.group_share_heartbeat_interval_ms,
            share_partition_max_record_locks=self.group_share_partition_max_record_locks,
            share_record_lock_duration_ms=self.group_share_record_lock_duration_ms,
            share_session_timeout_ms=self.group_share_session_timeout_ms,
        )
        config = dataclasses.replace(config, **parse_all(GROUP_SETTINGS, overrides, "group"))
        for name, low, high in self._bounds():
            definition = GROUP_SETTINGS[name]
            value = getattr(config, definition.attribute)
            complaint = between(low, high).failure(value)
            if complaint is not None and name in overrides:
                raise definition.invalid(str(value), complaint)
        if config.share_heartbeat_interval_ms >= config.share_session_timeout_ms:
            raise InvalidSetting("share.session.timeout.ms must be greater than share.heartbeat.interval.ms")
        return config

    def _bounds(self) -> tuple[tuple[str, int, int], ...]:
        """What the broker allows its groups: name, lowest, highest."""
        return (
            (
                "share.heartbeat.interval.ms",
                self.group_share_min_heartbeat_interval_ms,
                self.group_share_max_heartbeat_interval_ms,
            ),
            (
                "share.record.lock.duration.ms",
                self.group_share_min_record_lock_duration_ms,
                self.group_share_max_record_lock_duration_ms,
            ),
            (
                "share.session.timeout.ms",
                self.group_share_min_session_timeout_ms,
                self.group_share_max_session_timeout_ms,
            ),
        )

    def check_share(self) -> None:
        """Whether the defaults lie within what the broker allows its groups."""
        for name, low, high in self._bounds():
            if low > high:
                raise InvalidSetting(f"group.{name}: its minimum ({low}) must not be above its maximum ({high})")
            complaint = between(low, high).failure(getattr(self, f"group.{name}".replace(".", "_")))
            if complaint is not None:
                raise InvalidSetting(f"group.{name}: {complaint}")
        self.group_config({})


@dataclasses.dataclass(frozen=True)
class GroupConfig:
    """What one group obeys: its own overrides over the broker's defaults."""

    share_auto_offset_reset: str = setting(
        "share.auto.offset.reset",
        ConfigType.STRING,
        LATEST,
        "Where a share group begins that has no start offset yet: at the end of the log (`latest`), at its beginning "
        "(`earliest`), or so long ago (`by_duration:PT1H`).",
        _RESETS,
    )
    share_delivery_count_limit: int = setting(
        "share.delivery.count.limit",
        ConfigType.INT,
        5,
        "How often a record is delivered before it is archived.",
        between(2, 10),
        ("group.share.delivery.count.limit",),
    )
    share_heartbeat_interval_ms: int = setting(
        "share.heartbeat.interval.ms",
        ConfigType.INT,
        5_000,
        "How often members send heartbeats.",
        at_least(1),
        ("group.share.heartbeat.interval.ms",),
    )
    share_isolation_level: str = setting(
        "share.isolation.level",
        ConfigType.STRING,
        READ_UNCOMMITTED,
        "Whether records of open and aborted transactions are delivered (`read_uncommitted`) or not "
        "(`read_committed`).",
        one_of(READ_COMMITTED, READ_UNCOMMITTED),
    )
    share_partition_max_record_locks: int = setting(
        "share.partition.max.record.locks",
        ConfigType.INT,
        2_000,
        "How far past a partition's start offset records are delivered, in offsets.",
        between(100, 10_000),
        ("group.share.partition.max.record.locks",),
    )
    share_record_lock_duration_ms: int = setting(
        "share.record.lock.duration.ms",
        ConfigType.INT,
        30_000,
        "How long a member holds a record before it is given to another.",
        at_least(1_000),
        ("group.share.record.lock.duration.ms",),
    )
    share_renew_acknowledge_enable: bool = setting(
        "share.renew.acknowledge.enable",
        ConfigType.BOOLEAN,
        True,
        "Whether members may extend the time for which they hold a record.",
    )
    share_session_timeout_ms: int = setting(
        "share.session.timeout.ms",
        ConfigType.INT,
        45_000,
        "How long a member stays in the group without a heartbeat.",
        at_least(1),
        ("group.share.session.timeout.ms",),
    )


GROUP_SETTINGS: dict[str, Setting] = settings_of(GroupConfig)
