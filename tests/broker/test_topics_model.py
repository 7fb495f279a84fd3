"""Any history of creations, deletions, alterations and restarts leaves the topics a plain model expects."""

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any
from uuid import UUID

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.broker.errors import ApiError, ErrorCode
from tests.broker.node import Node

NAMES = st.sampled_from(["a", "b", "a.b", "a_b", "c.d.e", "c_d.e"])
OVERRIDES = st.dictionaries(
    st.sampled_from(["retention.ms", "segment.ms", "segment.bytes", "retention.bytes"]),
    st.integers(14, 10**6).map(str),
    max_size=3,
)


class Expected:
    def __init__(self, id: UUID, partitions: int, overrides: dict[str, str]) -> None:
        self.id = id
        self.ends = [0] * partitions
        self.overrides = overrides


class TopicsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.loop = asyncio.new_event_loop()
        self.expected: dict[str, Expected] = {}
        self.used_ids: set[UUID] = set()

    @initialize()
    def start(self) -> None:
        self.node = self.run(self._open(unclean=False))

    def teardown(self) -> None:
        self.run(self.node.close())
        self.loop.close()
        shutil.rmtree(self.folder)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def outcome(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The result, or the code of the error."""
        try:
            return self.run(work)
        except ApiError as error:
            return error.code

    async def _open(self, *, unclean: bool) -> Node:
        return Node(self.folder, {}, unclean=unclean)

    @rule(name=NAMES, partitions=st.integers(1, 4), overrides=OVERRIDES)
    def create(self, name: str, partitions: int, overrides: dict[str, str]) -> None:
        topic = self.outcome(self.node.topics.create(name, partitions, overrides))
        if name in self.expected:
            assert topic is ErrorCode.TOPIC_ALREADY_EXISTS
            return
        if any(other.replace(".", "_") == name.replace(".", "_") for other in self.expected):
            assert topic is ErrorCode.INVALID_TOPIC_EXCEPTION
            return
        assert topic.id not in self.used_ids
        self.used_ids.add(topic.id)
        self.expected[name] = Expected(topic.id, partitions, dict(overrides))

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        topic = self.node.topics.get(name)
        if topic is not None:
            self.run(self.node.topics.delete(topic))
            del self.expected[name]

    @rule(name=NAMES, more=st.integers(0, 2))
    def add_partitions(self, name: str, more: int) -> None:
        topic = self.node.topics.get(name)
        if topic is None:
            return
        outcome = self.outcome(self.node.topics.add_partitions(topic, len(topic.partitions) + more))
        assert outcome is (None if more else ErrorCode.INVALID_PARTITIONS)
        self.expected[name].ends += [0] * more

    @rule(name=NAMES, overrides=OVERRIDES)
    def alter(self, name: str, overrides: dict[str, str]) -> None:
        topic = self.node.topics.get(name)
        if topic is not None:
            self.run(self.node.topics.alter_config(topic, lambda current: {**current, **overrides}))
            self.expected[name].overrides |= overrides

    @rule(name=NAMES, index=st.integers(0, 3))
    def write(self, name: str, index: int) -> None:
        partition = self.node.topics.partition(name, index)
        if partition is not None and partition.config.segment_bytes > 100:
            self.run(self.node.write(name, 1000, index=index))
            self.expected[name].ends[index] += 1

    @rule(unclean=st.booleans())
    def restart(self, unclean: bool) -> None:
        self.run(self.node.close())
        self.node = self.run(self._open(unclean=unclean))

    @invariant()
    def topics_are_as_expected(self) -> None:
        found = {topic.name: topic for topic in self.node.topics.all()}
        assert set(found) == set(self.expected)
        for name, expected in self.expected.items():
            topic = found[name]
            assert topic.id == expected.id
            assert self.node.topics.by_id(expected.id) is topic
            assert topic.overrides == expected.overrides
            assert topic.config == self.node.settings.topic_config(expected.overrides)
            assert [partition.high_watermark for partition in topic.partitions] == expected.ends
            assert all(partition.config is topic.config for partition in topic.partitions)

    @invariant()
    def metadata_says_so(self) -> None:
        answer = self.run(self.node.call("metadata", 12, {"topics": None}))
        told = {(topic.name, topic.topic_id): len(topic.partitions) for topic in answer.topics}
        assert told == {(name, topic.id): len(topic.ends) for name, topic in self.expected.items()}


TestTopicsMachine = TopicsMachine.TestCase
TestTopicsMachine.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
