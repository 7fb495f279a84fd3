"""The APIs of groups and offsets on the wire, in every version; HEADRACE_TEST_BROKER=kafka holds Kafka to it too."""

import os
import time
import uuid
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from headrace.broker.errors import ErrorCode
from headrace.broker.wire.apis import APIS
from tests.broker.groups_harness import subscription
from tests.broker.rawclient import RawClient

KEYS = {api.name: api.key for api in APIS.values()}
LIMIT = 60.0
NO_ID = UUID(int=0)


class Speaker(RawClient):
    """A connection that knows what the broker at its other end serves."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        super().__init__(host, int(port), client_id="speaker", timeout=LIMIT)
        served = self.call(KEYS["api_versions"], 0)
        self._served = {each.api_key: (each.min_version, each.max_version) for each in served.api_keys}

    def ask(self, api: str, version: int, **body: Any) -> SimpleNamespace:
        return self.call(self.key(api, version), version, body)

    def key(self, api: str, version: int) -> int:
        low, high = self._served[KEYS[api]]
        if not low <= version <= high:
            assert os.environ.get("HEADRACE_TEST_BROKER") == "kafka", f"{api} {version} is not served"
            pytest.skip(f"Kafka does not serve {api} {version}")
        return KEYS[api]


def versions(api: str) -> pytest.MarkDecorator:
    served = APIS[KEYS[api]]
    return pytest.mark.parametrize("version", range(served.min, served.max + 1))


@pytest.fixture
def connect(broker_address: str) -> Iterator[Callable[[], Speaker]]:
    open_ones: list[Speaker] = []

    def new() -> Speaker:
        open_ones.append(Speaker(broker_address))
        return open_ones[-1]

    yield new
    for speaker in open_ones:
        speaker.close()


@pytest.fixture
def speaker(connect: Callable[[], Speaker]) -> Speaker:
    return connect()


@pytest.fixture
def group(speaker: Speaker) -> str:
    """A group of this test's own, whose coordinator is there."""
    name = f"group-{uuid.uuid4().hex[:12]}"
    until = time.monotonic() + LIMIT
    while speaker.ask("find_coordinator", 4, coordinator_keys=[name]).coordinators[0].error_code:
        assert time.monotonic() < until
        time.sleep(0.1)
    # Kafka has found it before it has loaded it.
    while speaker.ask("describe_groups", 0, groups=[name]).groups[0].error_code:
        assert time.monotonic() < until
        time.sleep(0.1)
    return name


class Topic:
    def __init__(self, name: str, topic_id: UUID) -> None:
        self.name = name
        self.id = topic_id


@pytest.fixture
def made(speaker: Speaker, topic: str) -> Topic:
    """A topic of two partitions."""
    wanted = {"name": topic, "num_partitions": 2, "replication_factor": 1}
    assert speaker.ask("create_topics", 5, topics=[wanted], timeout=10_000).topics[0].error_code == 0
    until = time.monotonic() + LIMIT
    while True:
        (found,) = speaker.ask("metadata", 12, topics=[{"name": topic}]).topics
        if found.error_code == 0 and all(partition.error_code == 0 for partition in found.partitions):
            return Topic(topic, found.topic_id)
        assert time.monotonic() < until


def join(group: str, **changed: Any) -> dict[str, Any]:
    return {
        "group_id": group,
        "session_timeout": 10_000,
        "rebalance_timeout": 20_000,
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": subscription("read")}],
        **changed,
    }


class Member:
    """One member on a connection of its own, in the versions the newest clients speak."""

    def __init__(self, speaker: Speaker, group: str, version: int = 9, **changed: Any) -> None:
        self.speaker = speaker
        self.group = group
        self.version = version
        self.changed = changed
        self.id = ""
        self.generation = -1
        self._waiting = 0

    def begin(self) -> None:
        if self.version >= 4 and not self.id and "group_instance_id" not in self.changed:
            self._send()
            answer = self.end()
            assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
            self.id = answer.member_id
        self._send()

    def _send(self) -> None:
        body = join(self.group, member_id=self.id, **self.changed)
        self._waiting = self.speaker.send(self.speaker.key("join_group", self.version), self.version, body)

    def end(self) -> SimpleNamespace:
        answer = self.speaker.receive(KEYS["join_group"], self.version, self._waiting)
        if answer.error_code == ErrorCode.NONE:
            self.id, self.generation = answer.member_id, answer.generation_id
        return answer

    def join(self) -> SimpleNamespace:
        self.begin()
        return self.end()

    def sync(self, version: int = 5, shares: dict[str, bytes] | None = None, **changed: Any) -> SimpleNamespace:
        return self.speaker.ask(
            "sync_group",
            version,
            **{
                "group_id": self.group,
                "generation_id": self.generation,
                "member_id": self.id,
                "group_instance_id": self.changed.get("group_instance_id") if version >= 3 else None,
                "protocol_type": "consumer" if version >= 5 else None,
                "protocol_name": "range" if version >= 5 else None,
                "assignments": [{"member_id": each, "assignment": share} for each, share in (shares or {}).items()],
                **changed,
            },
        )

    def settle(self) -> "Member":
        """Be the only member of a stable group."""
        assert self.join().error_code == ErrorCode.NONE
        assert self.sync(shares={self.id: b"all"}).assignment == b"all"
        return self

    def heartbeat(self, version: int = 4, **changed: Any) -> ErrorCode:
        body = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.id,
            "group_instance_id": self.changed.get("group_instance_id") if version >= 3 else None,
        }
        return ErrorCode(self.speaker.ask("heartbeat", version, **{**body, **changed}).error_code)


# Members


@versions("find_coordinator")
def test_find_coordinator(speaker: Speaker, group: str, version: int, broker_address: str) -> None:
    def find(key_type: int) -> list[SimpleNamespace]:
        answer = speaker.ask(
            "find_coordinator", version, key=group, key_type=key_type, coordinator_keys=[group, "other"]
        )
        return answer.coordinators if version >= 4 else [answer]

    found = find(0)
    assert {(each.error_code, f"{each.host}:{each.port}") for each in found} == {(0, broker_address)}
    if version >= 4:
        assert [each.key for each in found] == [group, "other"]
    if version >= 1:
        unknown = find(9)
        assert {each.error_code for each in unknown} == {ErrorCode.INVALID_REQUEST}
        assert {(each.node_id, each.host, each.port) for each in unknown} == {(-1, "", -1)}
        assert {each.error_code for each in find(2)} == {ErrorCode.INVALID_REQUEST}


@versions("join_group")
def test_join(speaker: Speaker, group: str, version: int) -> None:
    body = join(group)
    first = speaker.ask("join_group", version, **body)
    if version >= 4:
        assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert first.member_id.startswith("speaker-")
        assert (first.generation_id, first.leader, first.members) == (-1, "", [])
        assert first.protocol_name == (None if version >= 7 else "")
        first = speaker.ask("join_group", version, **body | {"member_id": first.member_id})
    assert first.error_code == ErrorCode.NONE
    assert (first.generation_id, first.protocol_name, first.leader) == (1, "range", first.member_id)
    if version >= 7:
        assert first.protocol_type == "consumer"
    ((member),) = first.members
    assert (member.member_id, member.metadata) == (first.member_id, subscription("read"))
    again = speaker.ask("join_group", version, **body | {"member_id": first.member_id})
    assert (again.error_code, again.generation_id) == (0, 1)


@versions("join_group")
def test_joins_that_are_refused(speaker: Speaker, group: str, version: int) -> None:
    def refused(**changed: Any) -> tuple[int, str]:
        answer = speaker.ask("join_group", version, **join(group, **changed))
        return answer.error_code, answer.member_id

    assert refused(session_timeout=1) == (ErrorCode.INVALID_SESSION_TIMEOUT, "")
    assert refused(session_timeout=2_000_000, member_id="x") == (ErrorCode.INVALID_SESSION_TIMEOUT, "x")
    assert refused(group_id="") == (ErrorCode.INVALID_GROUP_ID, "")
    assert refused(member_id="made-up") == (ErrorCode.UNKNOWN_MEMBER_ID, "made-up")
    assert refused(protocols=[]) == (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "")
    assert refused(protocol_type="") == (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "")
    Member(speaker, group).settle()
    other = [{"name": "other", "metadata": b""}]
    assert refused(protocols=other) == (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "")
    assert refused(protocol_type="connect") == (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "")
    assert refused(member_id="made-up") == (ErrorCode.UNKNOWN_MEMBER_ID, "made-up")
    if version >= 5:
        assert refused(member_id="made-up", group_instance_id="nobody") == (ErrorCode.UNKNOWN_MEMBER_ID, "made-up")


@versions("sync_group")
def test_sync(speaker: Speaker, group: str, version: int) -> None:
    member = Member(speaker, group)
    member.join()
    assert member.sync(version, generation_id=7).error_code == ErrorCode.ILLEGAL_GENERATION
    assert member.sync(version, member_id="made-up").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert member.sync(version, group_id="").error_code == ErrorCode.INVALID_GROUP_ID
    assert member.sync(version, group_id="missing").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    if version >= 5:
        inconsistent = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert member.sync(version, protocol_name="other").error_code == inconsistent
        assert member.sync(version, protocol_type="other").error_code == inconsistent
        assert member.sync(version, protocol_name=None).error_code == inconsistent
    answer = member.sync(version, {member.id: b"all"})
    assert (answer.error_code, answer.assignment) == (ErrorCode.NONE, b"all")
    if version >= 5:
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
    assert member.sync(version).assignment == b"all"


@versions("heartbeat")
def test_heartbeat(connect: Callable[[], Speaker], speaker: Speaker, group: str, version: int) -> None:
    member = Member(speaker, group)
    assert member.heartbeat(version) is ErrorCode.UNKNOWN_MEMBER_ID
    member.settle()
    assert member.heartbeat(version) is ErrorCode.NONE
    assert member.heartbeat(version, generation_id=7) is ErrorCode.ILLEGAL_GENERATION
    assert member.heartbeat(version, member_id="made-up") is ErrorCode.UNKNOWN_MEMBER_ID
    assert member.heartbeat(version, group_id="") is ErrorCode.INVALID_GROUP_ID
    newcomer = Member(connect(), group, version=2)
    newcomer.begin()
    until = time.monotonic() + LIMIT
    while member.heartbeat(version) is ErrorCode.NONE:
        assert time.monotonic() < until
    assert member.heartbeat(version) is ErrorCode.REBALANCE_IN_PROGRESS


@versions("leave_group")
def test_leave(speaker: Speaker, group: str, version: int) -> None:
    member = Member(speaker, group).settle()

    def leave(member_id: str, group_id: str = group) -> int:
        answer = speaker.ask(
            "leave_group",
            version,
            group_id=group_id,
            member_id=member_id,
            members=[{"member_id": member_id, "group_instance_id": None, "reason": "done"}],
        )
        if version >= 3 and answer.error_code == ErrorCode.NONE:
            ((only),) = answer.members
            assert only.member_id == member_id
            return int(only.error_code)
        assert not answer.members
        return int(answer.error_code)

    assert leave("made-up") == ErrorCode.UNKNOWN_MEMBER_ID
    assert leave(member.id, "missing") == ErrorCode.UNKNOWN_MEMBER_ID
    assert leave(member.id, "") == ErrorCode.INVALID_GROUP_ID
    assert leave(member.id) == ErrorCode.NONE
    assert leave(member.id) == ErrorCode.UNKNOWN_MEMBER_ID
    assert member.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert speaker.ask("describe_groups", 5, groups=[group]).groups[0].group_state == "Empty"


@pytest.mark.parametrize("version", [5, 8, 9])
def test_a_static_leader_comes_back(speaker: Speaker, group: str, version: int) -> None:
    old = Member(speaker, group, version, group_instance_id="one").settle()
    new = Member(speaker, group, version, group_instance_id="one")
    answer = new.join()
    assert (answer.error_code, answer.generation_id) == (ErrorCode.NONE, old.generation)
    assert new.id != old.id
    assert answer.leader == (new.id if version >= 9 else old.id)
    assert len(answer.members) == (1 if version >= 9 else 0)
    if version >= 9:
        assert answer.skip_assignment
    assert new.sync().assignment == b"all"
    assert old.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    assert old.sync().error_code == ErrorCode.FENCED_INSTANCE_ID
    assert old.join().error_code == ErrorCode.FENCED_INSTANCE_ID
    assert new.heartbeat() is ErrorCode.NONE
    (left,) = speaker.ask(
        "leave_group", 5, group_id=group, members=[{"member_id": "", "group_instance_id": "one", "reason": None}]
    ).members
    assert (left.member_id, left.group_instance_id, left.error_code) == ("", "one", ErrorCode.NONE)


def test_two_members_share(connect: Callable[[], Speaker], speaker: Speaker, group: str) -> None:
    first, second = Member(speaker, group).settle(), Member(connect(), group)
    second.begin()
    until = time.monotonic() + LIMIT
    while first.heartbeat() is ErrorCode.NONE:
        assert time.monotonic() < until
    led = first.join()
    followed = second.end()
    assert {m.member_id for m in led.members} == {first.id, second.id}
    assert followed.members == []
    assert led.leader == followed.leader == first.id
    assert first.generation == second.generation == 2
    first.sync(shares={first.id: b"one", second.id: b"two"})
    assert second.sync().assignment == b"two"


# Offsets


def commit(
    speaker: Speaker, version: int, group: str, made: Topic, partitions: dict[int, int], **changed: Any
) -> dict[int, ErrorCode]:
    metadata = changed.pop("metadata", "note")
    answer = speaker.ask(
        "offset_commit",
        version,
        **{
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "retention_time": -1,
            "topics": [
                {
                    "name": made.name,
                    "topic_id": made.id,
                    "partitions": [
                        {
                            "partition_index": index,
                            "committed_offset": offset,
                            "committed_leader_epoch": 0,
                            "committed_metadata": metadata,
                        }
                        for index, offset in partitions.items()
                    ],
                }
            ],
            **changed,
        },
    )
    ((only),) = answer.topics
    assert (only.topic_id == made.id) if version >= 10 else (only.name == made.name)
    return {each.partition_index: ErrorCode(each.error_code) for each in only.partitions}


def fetch(
    speaker: Speaker, version: int, group: str, made: Topic | None, indexes: tuple[int, ...] = (), stable: bool = False
) -> dict[Any, dict[int, tuple[int, str, ErrorCode]]]:
    topics: list[dict[str, Any]] | None = None
    if made is not None:
        topics = [{"name": made.name, "partition_indexes": list(indexes)}]
        if version >= 8:
            topics[0]["topic_id"] = made.id
    wanted: dict[str, Any] = {"group_id": group, "topics": topics}
    if version >= 8:
        wanted = {"groups": [wanted | {"member_id": None, "member_epoch": -1}]}
    answer = speaker.ask("offset_fetch", version, **wanted, require_stable=stable)
    if version >= 8:
        ((answer),) = answer.groups
        assert answer.group_id == group
    assert answer.error_code == 0
    return {
        (topic.topic_id if version >= 10 else topic.name): {
            each.partition_index: (each.committed_offset, each.metadata, ErrorCode(each.error_code))
            for each in topic.partitions
        }
        for topic in answer.topics
    }


@versions("offset_commit")
def test_commit(speaker: Speaker, group: str, made: Topic, version: int) -> None:
    answer = commit(speaker, version, group, made, {0: 5, 1: 6, 9: 7})
    assert answer == {0: ErrorCode.NONE, 1: ErrorCode.NONE, 9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert fetch(speaker, 8, group, made, (0, 1))[made.name] == {
        0: (5, "note", ErrorCode.NONE),
        1: (6, "note", ErrorCode.NONE),
    }
    missing = Topic("missing", UUID(int=77))
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(speaker, version, group, missing, {0: 1}) == {0: unknown}
    long = "x" * 4097
    assert commit(speaker, version, group, made, {0: 9}, metadata=long) == {0: ErrorCode.OFFSET_METADATA_TOO_LARGE}
    assert commit(speaker, version, group, made, {0: 8}, metadata=None) == {0: ErrorCode.NONE}
    assert fetch(speaker, 8, group, made, (0,))[made.name][0] == (8, "", ErrorCode.NONE)


@versions("offset_commit")
def test_commits_of_members(speaker: Speaker, group: str, made: Topic, version: int) -> None:
    def code(**changed: Any) -> ErrorCode:
        return commit(speaker, version, group, made, {0: 5}, **changed)[0]

    not_found = ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION
    assert code(generation_id_or_member_epoch=1, member_id="made-up") is not_found
    member = Member(speaker, group)
    member.join()
    mine = {"generation_id_or_member_epoch": member.generation, "member_id": member.id}
    assert code(**mine) is ErrorCode.REBALANCE_IN_PROGRESS
    member.sync(shares={member.id: b"all"})
    assert code(**mine) is ErrorCode.NONE
    assert code() is ErrorCode.UNKNOWN_MEMBER_ID
    assert code(**mine | {"generation_id_or_member_epoch": 7}) is ErrorCode.ILLEGAL_GENERATION
    assert code(**mine | {"member_id": "made-up"}) is ErrorCode.UNKNOWN_MEMBER_ID
    if version >= 7:
        assert code(**mine, group_instance_id="nobody") is ErrorCode.UNKNOWN_MEMBER_ID


@versions("offset_fetch")
def test_fetch(speaker: Speaker, group: str, made: Topic, version: int) -> None:
    name = made.id if version >= 10 else made.name
    nothing = (-1, "", ErrorCode.NONE)
    assert fetch(speaker, version, group, made, (0, 5)) == {name: {0: nothing, 5: nothing}}
    commit(speaker, 8, group, made, {1: 6})
    for stable in (False, True) if version >= 7 else (False,):
        found = fetch(speaker, version, group, made, (0, 1), stable)
        assert found == {name: {0: nothing, 1: (6, "note", ErrorCode.NONE)}}
    if version >= 2:
        assert fetch(speaker, version, group, None) == {name: {1: (6, "note", ErrorCode.NONE)}}
        assert fetch(speaker, version, "missing", None) == {}
    missing = Topic("missing", UUID(int=77))
    unknown = (-1, "", ErrorCode.UNKNOWN_TOPIC_ID) if version >= 10 else nothing
    assert fetch(speaker, version, group, missing, (3,)) == {missing.id if version >= 10 else "missing": {3: unknown}}


@pytest.mark.parametrize("version", [8, 9, 10])
def test_fetch_for_several_groups_at_once(speaker: Speaker, group: str, made: Topic, version: int) -> None:
    commit(speaker, 8, group, made, {0: 6})
    wanted = [{"name": made.name, "topic_id": made.id, "partition_indexes": [0]}]
    both = [{"group_id": each, "topics": wanted, "member_id": None, "member_epoch": -1} for each in (group, "missing")]
    answer = speaker.ask("offset_fetch", version, groups=both, require_stable=True)
    assert [(each.group_id, each.error_code) for each in answer.groups] == [(group, 0), ("missing", 0)]
    assert [each.topics[0].partitions[0].committed_offset for each in answer.groups] == [6, -1]


# Administration


@versions("describe_groups")
def test_describe(speaker: Speaker, group: str, version: int) -> None:
    def describe(asked: bool = False) -> SimpleNamespace:
        body = {"groups": [group], "include_authorized_operations": asked}
        ((only),) = speaker.ask("describe_groups", version, **body).groups
        assert only.group_id == group
        return only

    missing = describe()
    assert (missing.group_state, missing.members) == ("Dead", [])
    if version >= 6:
        assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert missing.error_message == f"Group {group} not found."
    else:
        assert missing.error_code == ErrorCode.NONE
    member = Member(speaker, group, group_instance_id="one").settle()
    found = describe(asked=True)
    assert (found.error_code, found.group_state) == (ErrorCode.NONE, "Stable")
    assert (found.protocol_type, found.protocol_data) == ("consumer", "range")
    ((described),) = found.members
    assert (described.member_id, described.client_id, described.client_host) == (member.id, "speaker", "/127.0.0.1")
    assert (described.member_metadata, described.member_assignment) == (subscription("read"), b"all")
    if version >= 4:
        assert described.group_instance_id == "one"
    if version >= 3:
        assert found.authorized_operations == 0b1101_0100_1000
        assert describe().authorized_operations == -(1 << 31)


@versions("list_groups")
def test_list(speaker: Speaker, group: str, made: Topic, version: int) -> None:
    simple = f"simple-{group}"
    commit(speaker, 8, simple, made, {0: 1})
    Member(speaker, group).settle()

    def listed(states: list[str], types: list[str]) -> dict[str, tuple[str, ...]]:
        answer = speaker.ask("list_groups", version, states_filter=states, types_filter=types)
        assert answer.error_code == ErrorCode.NONE
        return {
            each.group_id: (each.protocol_type, each.group_state, each.group_type)[: max(1, version - 2)]
            for each in answer.groups
            if each.group_id in (group, simple)
        }

    mine, other = ("consumer", "Stable", "classic"), ("", "Empty", "classic")
    shown = max(1, version - 2)
    assert listed([], []) == {group: mine[:shown], simple: other[:shown]}
    if version >= 4:
        assert listed(["stable"], []) == {group: mine[:shown]}
        assert listed(["Empty"], []) == {simple: other[:shown]}
        assert listed(["nonsense"], []) == {}
    if version >= 5:
        assert listed(["Stable", "Empty"], ["Classic"]) == {group: mine, simple: other}
        assert listed([], ["consumer"]) == {}
        assert listed([], ["nonsense"]) == {}


@versions("delete_groups")
def test_delete(speaker: Speaker, group: str, made: Topic, version: int) -> None:
    simple = f"simple-{group}"
    commit(speaker, 8, simple, made, {0: 1})
    Member(speaker, group).settle()
    answer = speaker.ask("delete_groups", version, groups_names=[group, simple, "missing", simple])
    assert {each.group_id: ErrorCode(each.error_code) for each in answer.results} == {
        group: ErrorCode.NON_EMPTY_GROUP,
        simple: ErrorCode.NONE,
        "missing": ErrorCode.GROUP_ID_NOT_FOUND,
    }
    assert fetch(speaker, 8, simple, made, (0,))[made.name][0][0] == -1


def test_offset_delete(speaker: Speaker, group: str, made: Topic) -> None:
    def delete(*names: str, group_id: str = group) -> tuple[ErrorCode, dict[str, dict[int, ErrorCode]]]:
        topics = [{"name": name, "partitions": [{"partition_index": i} for i in (0, 7)]} for name in names]
        answer = speaker.ask("offset_delete", 0, group_id=group_id, topics=topics)
        codes = {
            topic.name: {each.partition_index: ErrorCode(each.error_code) for each in topic.partitions}
            for topic in answer.topics
        }
        return ErrorCode(answer.error_code), codes

    unknown, subscribed = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert delete(made.name) == (ErrorCode.GROUP_ID_NOT_FOUND, {})
    assert delete(made.name, group_id="") == (ErrorCode.INVALID_GROUP_ID, {})
    commit(speaker, 8, group, made, {0: 3, 1: 4})
    subscriber = Member(speaker, group, protocols=[{"name": "range", "metadata": subscription(made.name)}]).settle()
    assert delete(made.name, "missing") == (
        ErrorCode.NONE,
        {made.name: {0: subscribed, 7: unknown}, "missing": {0: unknown, 7: unknown}},
    )
    speaker.ask("leave_group", 0, group_id=group, member_id=subscriber.id)
    assert delete(made.name) == (ErrorCode.NONE, {made.name: {0: ErrorCode.NONE, 7: unknown}})
    assert fetch(speaker, 8, group, None) == {made.name: {1: (4, "note", ErrorCode.NONE)}}
    other = f"other-{group}"
    Member(speaker, other, protocol_type="connect").join()
    assert delete(made.name, group_id=other) == (ErrorCode.NON_EMPTY_GROUP, {})


def test_offsets_go_with_their_topic(speaker: Speaker, group: str, made: Topic) -> None:
    commit(speaker, 8, group, made, {0: 3})
    answer = speaker.ask("delete_topics", 4, topic_names=[made.name], timeout=10_000)
    assert answer.responses[0].error_code == ErrorCode.NONE
    until = time.monotonic() + LIMIT
    while fetch(speaker, 8, group, made, (0,))[made.name][0][0] != -1:
        assert time.monotonic() < until
        time.sleep(0.05)
