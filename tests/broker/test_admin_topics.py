"""CreateTopics, DeleteTopics, CreatePartitions, Metadata and their kin, each in every version served."""

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from headrace.broker.errors import ErrorCode
from headrace.broker.wire import codec
from headrace.broker.wire.apis import APIS
from headrace.broker.wire.handlers import metadata
from tests.broker.node import KEYS, NO_ID, Node, on_node

NOT_REQUESTED = -(1 << 31)


def versions(name: str) -> range:
    api = APIS[KEYS[name]]
    return range(api.min, api.max + 1)


def new_topic(name: str, **changes: Any) -> dict[str, Any]:
    return {"name": name, "num_partitions": 1, "replication_factor": 1, **changes}


async def create(node: Node, *topics: dict[str, Any], version: int = 7, **fields: Any) -> list[SimpleNamespace]:
    answer = await node.call("create_topics", version, {"topics": topics, "timeout": 10_000, **fields})
    topics_answered: list[SimpleNamespace] = answer.topics
    return topics_answered


async def ask(node: Node, version: int, names: list[str] | None, **fields: Any) -> SimpleNamespace:
    topics = None if names is None else [{"name": name} for name in names]
    fields.setdefault("allow_auto_topic_creation", False)
    return await node.call("metadata", version, {"topics": topics, **fields})


@on_node()
async def test_create_in_every_version(node: Node) -> None:
    for version in versions("create_topics"):
        config = {"name": "retention.ms", "value": "60000"}
        (made,) = await create(node, new_topic(f"t{version}", num_partitions=2, configs=[config]), version=version)
        assert (made.name, made.error_code, made.error_message) == (f"t{version}", 0, None)
        topic = node.topics.get(f"t{version}")
        assert topic is not None
        assert len(topic.partitions) == 2
        assert topic.config.retention_ms == 60000
        if version >= 5:
            assert (made.num_partitions, made.replication_factor) == (2, 1)
            configs = {entry.name: (entry.value, entry.config_source) for entry in made.configs}
            assert configs["retention.ms"] == ("60000", 1)
            assert configs["segment.bytes"] == ("1073741824", 5)
        if version >= 7:
            assert made.topic_id == topic.id


@on_node(num_partitions="4")
async def test_create_refuses_as_kafka_does(node: Node) -> None:
    await create(node, new_topic("there"))
    assigned = {"num_partitions": -1, "replication_factor": -1}
    cases: list[tuple[dict[str, Any], ErrorCode]] = [
        (new_topic("there"), ErrorCode.TOPIC_ALREADY_EXISTS),
        # Whoever wants three replicas of a topic that is there hears that it is there.
        (new_topic("there", replication_factor=3), ErrorCode.TOPIC_ALREADY_EXISTS),
        (new_topic("a b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (new_topic("r2", replication_factor=2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (new_topic("r0", replication_factor=0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (new_topic("r-2", replication_factor=-2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (new_topic("p0", num_partitions=0), ErrorCode.INVALID_PARTITIONS),
        (new_topic("p-2", num_partitions=-2), ErrorCode.INVALID_PARTITIONS),
        (new_topic("c1", configs=[{"name": "flush.ms", "value": "1"}]), ErrorCode.INVALID_CONFIG),
        (new_topic("c2", configs=[{"name": "retention.ms", "value": None}]), ErrorCode.INVALID_CONFIG),
        (new_topic("c3", configs=[{"name": "cleanup.policy", "value": "compact"}]), ErrorCode.INVALID_CONFIG),
        (new_topic("m1", assignments=[{"partition_index": 0, "broker_ids": [1]}]), ErrorCode.INVALID_REQUEST),
        (
            new_topic("m2", num_partitions=-1, assignments=[{"partition_index": 0, "broker_ids": [1]}]),
            ErrorCode.INVALID_REQUEST,
        ),
        *(
            (new_topic(f"m{number}", **assigned, assignments=assignments), ErrorCode.INVALID_REPLICA_ASSIGNMENT)
            for number, assignments in enumerate(
                [
                    [{"partition_index": 0, "broker_ids": [9]}],
                    [{"partition_index": 0, "broker_ids": []}],
                    [{"partition_index": 0, "broker_ids": [1, 1]}],
                    [{"partition_index": 0, "broker_ids": [1, 9]}],
                    [{"partition_index": 1, "broker_ids": [1]}],
                    [{"partition_index": 0, "broker_ids": [1]}, {"partition_index": 0, "broker_ids": [1]}],
                ],
                start=3,
            )
        ),
    ]
    for topic, code in cases:
        (answer,) = await create(node, topic)
        assert (answer.name, answer.error_code) == (topic["name"], code), topic
        assert answer.error_message
        # Java's client stumbles over null.
        assert answer.configs == []
    assert [topic.name for topic in node.topics.all()] == ["there"]


@on_node()
async def test_create_with_names_as_long_as_the_protocol_allows(node: Node) -> None:
    for version in versions("create_topics"):
        configs = [{"name": "x" * 32_000, "value": "y" * 32_000}]
        for topic in (new_topic("x" * 32_767), new_topic("a", configs=configs)):
            (answer,) = await create(node, topic, version=version)
            assert answer.error_code in (ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.INVALID_CONFIG)
            assert len(answer.error_message) == 1000


@on_node(num_partitions="4")
async def test_create_by_defaults_and_by_assignment(node: Node) -> None:
    assignments = [{"partition_index": index, "broker_ids": [1]} for index in (1, 0)]
    answers = await create(
        node,
        new_topic("defaults", num_partitions=-1, replication_factor=-1),
        new_topic("assigned", num_partitions=-1, replication_factor=-1, assignments=assignments),
    )
    assert [(answer.name, answer.error_code, answer.num_partitions) for answer in answers] == [
        ("defaults", 0, 4),
        ("assigned", 0, 2),
    ]


@on_node()
async def test_create_twice_in_one_request(node: Node) -> None:
    answers = await create(node, new_topic("twice"), new_topic("once"), new_topic("twice"))
    assert {(answer.name, answer.error_code) for answer in answers} == {
        ("once", ErrorCode.NONE),
        ("twice", ErrorCode.INVALID_REQUEST),
    }
    assert node.topics.get("twice") is None


@on_node()
async def test_create_can_be_tried_only(node: Node) -> None:
    good, bad = await create(
        node, new_topic("a", num_partitions=3), new_topic("b", replication_factor=3), validate_only=True
    )
    assert (good.error_code, good.num_partitions) == (0, 3)
    assert bad.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert not list(node.topics.all())


@on_node()
async def test_create_that_takes_too_long_goes_on(node: Node) -> None:
    release = asyncio.Event()
    works = node.store.write

    async def slow(change: Any) -> Any:
        await release.wait()
        return await works(change)

    node.store.write = slow  # type: ignore[method-assign, assignment]
    (answer,) = await create(node, new_topic("slow"), timeout=20)
    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
    release.set()
    await node.topics.settle()
    assert node.topics.get("slow") is not None


@on_node()
async def test_delete_in_every_version(node: Node) -> None:
    for version in versions("delete_topics"):
        topic = await node.topics.create("a", 2)
        by_name: dict[str, Any] = {"topic_names": ["a", "none"], "topics": [{"name": "a"}, {"name": "none"}]}
        answer = await node.call("delete_topics", version, {**by_name, "timeout": 10_000})
        codes = {response.name: response.error_code for response in answer.responses}
        assert codes == {"a": ErrorCode.NONE, "none": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert node.topics.get("a") is None
        if version >= 6:
            assert {response.topic_id for response in answer.responses} == {topic.id, NO_ID}


@on_node()
async def test_delete_by_id(node: Node) -> None:
    one, two, three = [await node.topics.create(name, 1) for name in ("one", "two", "three")]
    stranger = uuid4()
    asked = [
        {"name": None, "topic_id": one.id},
        {"name": None, "topic_id": stranger},
        {"name": None, "topic_id": NO_ID},
        {"name": "two", "topic_id": two.id},
        {"name": "three"},
        {"name": "three"},
    ]
    answer = await node.call("delete_topics", 6, {"topics": asked, "timeout": 10_000})
    codes = {(response.name, response.topic_id): response.error_code for response in answer.responses}
    assert codes == {
        ("one", one.id): ErrorCode.NONE,
        (None, stranger): ErrorCode.UNKNOWN_TOPIC_ID,
        (None, NO_ID): ErrorCode.INVALID_REQUEST,
        ("two", two.id): ErrorCode.INVALID_REQUEST,
        ("three", NO_ID): ErrorCode.INVALID_REQUEST,
    }
    both = [{"name": None, "topic_id": three.id}, {"name": "three"}]
    answer = await node.call("delete_topics", 6, {"topics": both, "timeout": 10_000})
    assert [response.error_code for response in answer.responses] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]


@on_node(delete_topic_enable="false")
async def test_delete_can_be_switched_off(node: Node) -> None:
    await node.topics.create("a", 1)
    for version, code in ((1, ErrorCode.INVALID_REQUEST), (5, ErrorCode.TOPIC_DELETION_DISABLED)):
        answer = await node.call("delete_topics", version, {"topic_names": ["a"], "timeout": 10_000})
        assert [response.error_code for response in answer.responses] == [code]
    assert node.topics.get("a") is not None


@on_node()
async def test_create_partitions_in_every_version(node: Node) -> None:
    await node.topics.create("a", 1)
    for version in versions("create_partitions"):
        count = version + 2
        body = {"topics": [{"name": "a", "count": count, "assignments": None}], "timeout": 10_000}
        tried = await node.call("create_partitions", version, {**body, "validate_only": True})
        assert tried.results[0].error_code == 0
        answer = await node.call("create_partitions", version, body)
        assert [(result.name, result.error_code) for result in answer.results] == [("a", 0)]
        assert node.topics.partition("a", count - 1) is not None
        assert node.topics.partition("a", count) is None


@on_node()
async def test_create_partitions_refuses_as_kafka_does(node: Node) -> None:
    for name in ("a", "b"):
        await node.topics.create(name, 2)
    cases: list[tuple[dict[str, Any], ErrorCode]] = [
        ({"name": "none", "count": 3}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"name": "a", "count": 2}, ErrorCode.INVALID_PARTITIONS),
        ({"name": "a", "count": 1}, ErrorCode.INVALID_PARTITIONS),
        ({"name": "a", "count": 3, "assignments": []}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"name": "a", "count": 3, "assignments": [{"broker_ids": [7]}]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"name": "a", "count": 100_000}, ErrorCode.POLICY_VIOLATION),
    ]
    for topic, code in cases:
        body = {"topics": [{"assignments": None, **topic}], "timeout": 10_000}
        answer = await node.call("create_partitions", 3, body)
        assert answer.results[0].error_code == code, topic
    twice = [{"name": "a", "count": 3, "assignments": None}, {"name": "a", "count": 4, "assignments": None}]
    fine = {"name": "b", "count": 3, "assignments": [{"broker_ids": [1]}]}
    answer = await node.call("create_partitions", 3, {"topics": [*twice, fine], "timeout": 10_000})
    assert {(result.name, result.error_code) for result in answer.results} == {
        ("a", ErrorCode.INVALID_REQUEST),
        ("b", ErrorCode.NONE),
    }


@on_node()
async def test_metadata_in_every_version(node: Node) -> None:
    topic = await node.topics.create("a", 2)
    for version in versions("metadata"):
        answer = await ask(node, version, ["a"])
        assert [(broker.node_id, broker.host, broker.port) for broker in answer.brokers] == [(1, "127.0.0.1", 9092)]
        (described,) = answer.topics
        assert (described.name, described.error_code) == ("a", 0)
        assert [partition.partition_index for partition in described.partitions] == [0, 1]
        for partition in described.partitions:
            assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (1, [1], [1])
            assert partition.error_code == 0
            if version >= 7:
                assert partition.leader_epoch == 0
        if version >= 1:
            assert answer.controller_id == 1
        if version >= 2:
            assert answer.cluster_id == "a-cluster"
        if version >= 10:
            assert described.topic_id == topic.id
        if version >= 8:
            assert described.topic_authorized_operations == NOT_REQUESTED


@on_node()
async def test_metadata_of_all_topics_and_of_none(node: Node) -> None:
    await node.topics.create("a", 1)
    await node.topics.create("b", 1)
    for version in versions("metadata"):
        everything = await ask(node, version, [] if version == 0 else None)
        assert {topic.name for topic in everything.topics} == {"a", "b"}
        if version > 0:
            assert (await ask(node, version, [])).topics == []


@on_node()
async def test_metadata_by_id(node: Node) -> None:
    topic = await node.topics.create("a", 1)
    stranger = uuid4()
    asked = [{"name": None, "topic_id": topic.id}, {"name": None, "topic_id": stranger}, {"name": "ignored"}]
    answer = await node.call("metadata", 12, {"topics": asked, "allow_auto_topic_creation": True})
    assert [(t.name, t.topic_id, t.error_code) for t in answer.topics] == [
        ("a", topic.id, ErrorCode.NONE),
        (None, stranger, ErrorCode.UNKNOWN_TOPIC_ID),
    ]
    assert node.topics.get("ignored") is None
    answer = await node.call("metadata", 11, {"topics": [{"name": "a", "topic_id": topic.id}]})
    assert [(t.name, t.error_code) for t in answer.topics] == [("a", ErrorCode.INVALID_REQUEST)]
    answer = await node.call("metadata", 13, {"topics": [{"name": None, "topic_id": NO_ID}]})
    assert [t.error_code for t in answer.topics] == [ErrorCode.INVALID_REQUEST]


@on_node()
async def test_metadata_of_what_is_not_there(node: Node) -> None:
    await node.topics.create("a", 1)
    answer = await ask(node, 13, ["a", "none", "bad name", ""])
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [
        ("a", ErrorCode.NONE),
        ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("bad name", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ]
    assert node.topics.get("none") is None


@on_node(num_partitions="3")
async def test_metadata_makes_topics_if_asked(node: Node) -> None:
    for version in versions("metadata"):
        answer = await ask(node, version, [f"t{version}", "bad name"], allow_auto_topic_creation=True)
        assert [(t.error_code, len(t.partitions)) for t in answer.topics] == [(0, 3), (17, 0)]
    # A name that collides, and one of Kafka's own, are not made.
    await node.topics.create("a.b", 1)
    answer = await ask(node, 13, ["a_b", "__consumer_offsets"], allow_auto_topic_creation=True)
    assert [t.error_code for t in answer.topics] == [
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    before = len(list(node.topics.all()))
    await ask(node, 13, None, allow_auto_topic_creation=True)
    assert len(list(node.topics.all())) == before


@on_node(auto_create_topics_enable="false")
async def test_metadata_makes_no_topics_if_that_is_off(node: Node) -> None:
    for version in versions("metadata"):
        answer = await ask(node, version, ["a"], allow_auto_topic_creation=True)
        assert [topic.error_code for topic in answer.topics] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert node.topics.get("a") is None


@on_node(num_partitions="2")
async def test_fifty_clients_ask_for_a_new_topic_at_once(node: Node) -> None:
    answers = await asyncio.gather(*(ask(node, 9, ["new"], allow_auto_topic_creation=True) for _ in range(50)))
    assert {(answer.topics[0].error_code, len(answer.topics[0].partitions)) for answer in answers} == {(0, 2)}
    assert len(list(node.topics.all())) == 1


@on_node()
async def test_metadata_of_an_offline_partition(node: Node) -> None:
    await node.topics.create("a", 2)
    assert (await ask(node, 9, ["a"])).topics[0].partitions[1].error_code == 0
    node.partition("a", 1).fail("for the test")
    fine, offline = (await ask(node, 9, ["a"])).topics[0].partitions
    assert (fine.error_code, fine.leader_id) == (0, 1)
    assert (offline.error_code, offline.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert (offline.replica_nodes, offline.offline_replicas) == ([1], [1])


@on_node()
async def test_metadata_tells_what_may_be_done_if_asked(node: Node) -> None:
    await node.topics.create("a", 1)
    asked = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    answer = await ask(node, 8, ["a"], **asked)
    read, write, describe, cluster_action = 1 << 3, 1 << 4, 1 << 8, 1 << 9
    assert answer.topics[0].topic_authorized_operations & (read | write | describe) == read | write | describe
    assert answer.cluster_authorized_operations & cluster_action
    answer = await ask(node, 8, ["a"])
    assert answer.topics[0].topic_authorized_operations == NOT_REQUESTED
    assert answer.cluster_authorized_operations == NOT_REQUESTED


@on_node()
async def test_kept_answers_follow_every_change(node: Node) -> None:
    async def seen() -> dict[str, int]:
        answer = await ask(node, 12, None)
        return {topic.name: len(topic.partitions) for topic in answer.topics}

    topic = await node.topics.create("a", 1)
    assert await seen() == await seen() == {"a": 1}
    await node.topics.add_partitions(topic, 3)
    assert await seen() == {"a": 3}
    other = await node.topics.create("b", 1)
    assert await seen() == {"a": 3, "b": 1}
    await node.topics.delete(topic)
    assert await seen() == {"b": 1}
    assert (await ask(node, 12, ["b"])).topics[0].topic_id == other.id


@on_node()
async def test_kept_answers_stay_few(node: Node) -> None:
    names = [f"t{number}" for number in range(60)]
    for name in names:
        await node.topics.create(name, 100)
    kept = metadata._kept.setdefault(node.topics, metadata._Kept())
    for name in names:
        for other in names[:50]:
            await ask(node, 12, [name, other])
        assert kept.size == sum(len(answer) for answer in kept.answers.values())
        assert kept.size < metadata._KEPT_BYTES + 100_000
        if kept.size > metadata._KEPT_BYTES - 100_000:
            break
    else:
        raise AssertionError("too little was asked for")


@on_node()
async def test_describe_topic_partitions_in_pages(node: Node) -> None:
    topics = {name: await node.topics.create(name, count) for name, count in (("c", 1), ("a", 5), ("b", 2))}
    seen: list[tuple[str, int]] = []
    cursor: dict[str, Any] | None = None
    pages = 0
    while True:
        body = {"topics": [], "response_partition_limit": 3, "cursor": cursor}
        answer = await node.call("describe_topic_partitions", 0, body)
        pages += 1
        for topic in answer.topics:
            assert topic.topic_id == topics[topic.name].id
            for partition in topic.partitions:
                assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (1, [1], [1])
                assert (partition.eligible_leader_replicas, partition.last_known_elr) == ([], [])
                seen.append((topic.name, partition.partition_index))
        if answer.next_cursor is None:
            break
        cursor = vars(answer.next_cursor)
    assert seen == [("a", 0), ("a", 1), ("a", 2), ("a", 3), ("a", 4), ("b", 0), ("b", 1), ("c", 0)]
    assert pages == 3


@on_node()
async def test_describe_topic_partitions_by_name(node: Node) -> None:
    await node.topics.create("b", 1)
    body = {"topics": [{"name": name} for name in ("z z", "b", "none")]}
    answer = await node.call("describe_topic_partitions", 0, body)
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [
        ("b", ErrorCode.NONE),
        ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("z z", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ]
    for cursor in ({"topic_name": "other", "partition_index": 0}, {"topic_name": "b", "partition_index": -1}):
        refused = await node.call("describe_topic_partitions", 0, {"topics": [{"name": "b"}], "cursor": cursor})
        assert [topic.error_code for topic in refused.topics] == [ErrorCode.INVALID_REQUEST]


@on_node()
async def test_a_thousand_partitions_are_cheap_once_asked_for(node: Node) -> None:
    await node.topics.create("big", 1000)
    first = await node.call("metadata", 12, {"topics": None})
    assert len(first.topics[0].partitions) == 1000
    kept = metadata._kept[node.topics]
    (answer,) = kept.answers.values()
    parsed = codec.read_response(KEYS["metadata"], 12, memoryview(answer))
    assert parsed.topics[0].topic_id == node.topics.get("big").id  # type: ignore[union-attr]
    await node.call("metadata", 12, {"topics": None})
    assert len(kept.answers) == 1
