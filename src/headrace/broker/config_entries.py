"""Settings as clients are shown them: the value in force, where it comes from, and what it hides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.broker.config import ConfigSource, Setting
from headrace.broker.group_settings import GROUP_SETTINGS
from headrace.broker.settings import BROKER_SETTINGS, TOPIC_SETTINGS, BrokerSettings


class Synonym(NamedTuple):
    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """A setting's value in force. The synonyms are all that could give it, the one in force first."""

    setting: Setting
    value: str | None
    source: ConfigSource
    read_only: bool
    synonyms: list[Synonym]


def topic_entries(settings: BrokerSettings, overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Every setting of a topic with these overrides, by name."""
    config, source = settings.topic_config(overrides), ConfigSource.DYNAMIC_TOPIC_CONFIG
    return _dynamic_entries(settings, TOPIC_SETTINGS, config, overrides, source)


def group_entries(settings: BrokerSettings, overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Every setting of a group with these overrides, by name."""
    config, source = settings.group_config(overrides), ConfigSource.DYNAMIC_GROUP_CONFIG
    return _dynamic_entries(settings, GROUP_SETTINGS, config, overrides, source)


def _dynamic_entries(
    settings: BrokerSettings,
    definitions: Mapping[str, Setting],
    config: object,
    overrides: Mapping[str, str],
    source: ConfigSource,
) -> list[ConfigEntry]:
    entries = []
    for name, setting in sorted(definitions.items()):
        value = setting.text(getattr(config, setting.attribute))
        synonyms = list(_broker_synonyms(settings, setting.synonyms))
        if not setting.synonyms:
            synonyms.append(Synonym(name, setting.text(setting.default), ConfigSource.DEFAULT_CONFIG))
        if name in overrides:
            synonyms.insert(0, Synonym(name, value, source))
        entries.append(ConfigEntry(setting, value, synonyms[0].source, False, synonyms))
    return entries


def broker_entries(settings: BrokerSettings) -> list[ConfigEntry]:
    """Every setting of the broker, by name. None can be altered while it runs."""
    entries = []
    for name, setting in sorted(BROKER_SETTINGS.items()):
        value = setting.text(getattr(settings, setting.attribute))
        synonyms = list(_broker_synonyms(settings, _FAMILIES.get(name, (name,))))
        # A setting without a value, such as advertised.listeners, has no synonym that gives it one.
        source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
        entries.append(ConfigEntry(setting, value, source, True, synonyms))
    return entries


def _broker_synonyms(settings: BrokerSettings, names: tuple[str, ...]) -> Iterable[Synonym]:
    for name in names:
        if name in settings.given:
            yield Synonym(name, settings.given[name], ConfigSource.STATIC_BROKER_CONFIG)
    for name in names:
        setting = BROKER_SETTINGS[name]
        if setting.default is not None:
            yield Synonym(name, setting.text(setting.default), ConfigSource.DEFAULT_CONFIG)


# Settings that say the same in other units: log.retention.ms, .minutes and .hours.
_FAMILIES = {name: setting.synonyms for setting in TOPIC_SETTINGS.values() for name in setting.synonyms}
