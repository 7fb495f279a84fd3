"""The configs of groups: a group need not exist to have one, and it outlives the group."""

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.group_settings import GroupConfig
from headrace.broker.settings import BrokerSettings, InvalidSetting
from headrace.broker.store import Store, StoreError

SCHEMA = """
CREATE TABLE IF NOT EXISTS group_configs (
    group_id TEXT PRIMARY KEY,
    overrides TEXT NOT NULL
) STRICT, WITHOUT ROWID;
"""


class GroupConfigs:
    def __init__(self, store: Store, settings: BrokerSettings) -> None:
        self._store = store
        self._settings = settings
        self._default = settings.group_config({})
        self._overrides: dict[str, dict[str, str]] = {}
        self._configs: dict[str, GroupConfig] = {}
        self._changing = asyncio.Lock()

    def load(self) -> None:
        rows = self._store.load(lambda c: c.execute("SELECT group_id, overrides FROM group_configs").fetchall())
        for group_id, overrides in rows:
            self._put(group_id, json.loads(overrides))

    def of(self, group_id: str) -> GroupConfig:
        return self._configs.get(group_id, self._default)

    def overrides(self, group_id: str) -> Mapping[str, str]:
        return self._overrides.get(group_id, {})

    def group_ids(self) -> Iterable[str]:
        """The groups that have a config of their own."""
        return self._overrides.keys()

    async def alter(
        self, group_id: str, change: Callable[[Mapping[str, str]], Mapping[str, str]], validate_only: bool
    ) -> None:
        """Replace a group's overrides by what `change` makes of them; in force at once."""
        async with self._changing:
            overrides = dict(change(self.overrides(group_id)))
            try:
                self._settings.group_config(overrides)
            except InvalidSetting as error:
                raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from error
            if validate_only or overrides == self.overrides(group_id):
                return
            row = (group_id, json.dumps(overrides))

            def write(connection: sqlite3.Connection) -> None:
                if overrides:
                    connection.execute("INSERT OR REPLACE INTO group_configs VALUES (?, ?)", row)
                else:
                    connection.execute("DELETE FROM group_configs WHERE group_id = ?", row[:1])

            try:
                await asyncio.shield(self._store.write(write))
            except StoreError as error:
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
            self._put(group_id, overrides)

    def _put(self, group_id: str, overrides: dict[str, str]) -> None:
        if overrides:
            self._overrides[group_id] = overrides
            self._configs[group_id] = self._settings.group_config(overrides)
        else:
            self._overrides.pop(group_id, None)
            self._configs.pop(group_id, None)
