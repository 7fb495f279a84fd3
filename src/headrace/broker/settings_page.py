"""The page `docs/settings.md`, made from the definitions: `python -m headrace.broker.settings_page`."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.broker.config import Setting
from headrace.broker.group_settings import GROUP_SETTINGS
from headrace.broker.settings import BROKER_SETTINGS, FOREVER, MAX_INT, TOPIC_SETTINGS

_INTRODUCTION = """\
# Settings

This page is made from the definitions (`python -m headrace.broker.settings_page > docs/settings.md`).

A setting listed here is enforced. Any other is refused, with a suggestion of the nearest name. Names, types
and defaults are those of Apache Kafka 4 unless the text says otherwise.

These are settings of the broker, of its topics and of share groups. Those of an app and of the commands (addresses,
`headrace.toml`, `HEADRACE_KAFKA`, security) are described in
[moving to clusters](clusters.md#where-an-address-may-stand).
"""


def page() -> str:
    broker = "Given to `headrace broker` as `--set NAME=VALUE`, or to `BrokerSettings.parse`, when it starts."
    topic = (
        "Given when a topic is created, or altered later, and in force at once. "
        "Where a topic does not set one, the broker's beside it is the default; the first that is set wins."
    )
    group = (
        "Set with the GROUP resource of IncrementalAlterConfigs, before or after the group exists, and in force at "
        "once. Where a group does not set one, the broker's beside it is the default."
    )
    return "\n".join(
        [
            _INTRODUCTION,
            "## The broker\n",
            broker,
            "",
            *_table(BROKER_SETTINGS.values(), with_synonyms=False),
            "",
            "## Topics\n",
            topic,
            "",
            *_table(TOPIC_SETTINGS.values(), with_synonyms=True),
            "",
            "## Share groups\n",
            group,
            "",
            *_table(GROUP_SETTINGS.values(), with_synonyms=True),
            "",
        ]
    )


def _table(definitions: Iterable[Setting], *, with_synonyms: bool) -> Iterable[str]:
    heads = ["name", "type", "default", "valid values"] + ["the broker's"] * with_synonyms + ["what it does"]
    yield _row(heads)
    yield _row(["---"] * len(heads))
    for definition in definitions:
        synonyms = [", ".join(f"`{name}`" for name in definition.synonyms)] if with_synonyms else []
        yield _row(
            [
                f"`{definition.name}`",
                definition.type.name.lower(),
                _default(definition),
                definition.check.valid_values,
                *synonyms,
                definition.doc,
            ]
        )


def _default(definition: Setting) -> str:
    words = {None: "not set", FOREVER: "no limit", MAX_INT: "no limit"}
    if definition.default in words:
        return words[definition.default]
    return definition.text(definition.default) or ""


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(page(), end="")
