"""Offsets whose commit was acknowledged are there after kill -9, and none goes back."""

import threading
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from headrace.broker.errors import ErrorCode
from headrace.broker.wire.apis import APIS
from tests.broker.groups_clients import until
from tests.broker.rawclient import RawClient
from tests.peers import Headrace

KEYS = {api.name: api.key for api in APIS.values()}
GROUPS, PARTITIONS, ROUNDS = 4, 3, 3


class Committer:
    """Commits ever higher offsets of one group until its connection breaks."""

    def __init__(self, address: str, group: str, begin: int) -> None:
        host, port = address.rsplit(":", 1)
        self.client = RawClient(host, int(port))
        self.group = group
        self.begin = self.acknowledged = begin
        self.failure: AssertionError | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            while True:
                self._commit(self.acknowledged + 1)
                self.acknowledged += 1
        except OSError:
            self.client.close()
        except AssertionError as failure:
            self.failure = failure

    def has_committed(self) -> bool:
        if self.failure is not None:
            raise self.failure
        return self.acknowledged > self.begin + 20

    def _commit(self, offset: int) -> None:
        partitions = [
            {"partition_index": index, "committed_offset": offset, "committed_metadata": str(offset)}
            for index in range(PARTITIONS)
        ]
        topics = [{"name": "t", "partitions": partitions}]
        body: dict[str, Any] = {"group_id": self.group, "generation_id_or_member_epoch": -1, "topics": topics}
        answer = self.client.call(KEYS["offset_commit"], 8, body)
        assert {each.error_code for each in answer.topics[0].partitions} == {ErrorCode.NONE}


def committed(address: str, group: str) -> set[int]:
    host, port = address.rsplit(":", 1)
    with RawClient(host, int(port)) as client:
        answer = client.call(KEYS["offset_fetch"], 5, {"group_id": group, "topics": None})
    offsets = [each for topic in answer.topics for each in topic.partitions]
    assert all(each.metadata == str(each.committed_offset) for each in offsets)
    return {each.committed_offset for each in offsets}


def test_acknowledged_commits_survive_kill_9(tmp_path: Path) -> None:
    with Headrace(tmp_path) as server:
        admin = AdminClient({"bootstrap.servers": server.address, "log_level": 0})
        admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(60)
        last = dict.fromkeys((f"g{number}" for number in range(GROUPS)), 0)
        for _ in range(ROUNDS):
            committers = [Committer(server.address, group, begin) for group, begin in last.items()]
            for each in committers:
                until(each.has_committed, f"commits of {each.group}")
            server.kill()
            for each in committers:
                each.thread.join(60)
            server.start()
            for each in committers:
                # All partitions of a commit go together; the one that was not answered may have come through.
                (found,) = committed(server.address, each.group)
                assert found in (each.acknowledged, each.acknowledged + 1)
                last[each.group] = found
