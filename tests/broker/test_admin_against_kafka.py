"""The admin APIs ask Apache Kafka and Headrace the same, and compare what they say.

Left out of the comparison are texts of errors, and where Kafka has what is not served here (configs of loggers,
groups and client metrics; compaction) or serves its own (topics and settings of its own).
"""

import json
import re
import time
from collections.abc import Iterator
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from headrace.broker.wire.apis import APIS
from tests.broker.node import KEYS, NO_ID
from tests.broker.rawclient import RawClient
from tests.peers import ApacheKafka, Headrace, Server

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

STRANGER = UUID(int=5 << 64)
TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "num.partitions": "2"}
# Texts, and what no two brokers can agree on.
_LEFT_OUT = re.compile(r"error_message|cluster_id|host|port|usable_bytes|.*timestamp|documentation|synonyms|read_only")
SHARED_SETTINGS = [
    "cleanup.policy", "compression.type", "max.message.bytes", "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms", "message.timestamp.type", "retention.bytes", "retention.ms", "segment.bytes",
    "segment.ms",
]  # fmt: skip
SHARED_BROKER_SETTINGS = [
    "auto.create.topics.enable", "connections.max.idle.ms", "default.replication.factor", "delete.topic.enable",
    "fetch.max.bytes", "group.initial.rebalance.delay.ms", "group.max.session.timeout.ms", "group.max.size",
    "group.min.session.timeout.ms", "log.retention.bytes", "log.retention.check.interval.ms", "log.segment.bytes",
    "max.connections", "message.max.bytes", "num.partitions", "offset.metadata.max.bytes",
    "offsets.retention.check.interval.ms", "offsets.retention.minutes", "producer.id.expiration.ms",
    "socket.request.max.bytes", "transaction.abort.timed.out.transaction.cleanup.interval.ms",
    "transaction.max.timeout.ms", "transaction.remove.expired.transaction.cleanup.interval.ms",
    "transactional.id.expiration.ms",
]  # fmt: skip


class Call(NamedTuple):
    api: str
    body: dict[str, Any]


class Pair(NamedTuple):
    ours: Server
    kafka: Server


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    home = tmp_path_factory.mktemp("pair")
    with Headrace(home / "headrace", SETTINGS) as ours, ApacheKafka(home / "kafka", SETTINGS, heap="512M") as kafka:
        yield Pair(ours, kafka)


def create(*topics: dict[str, Any], **fields: Any) -> Call:
    asked = [{"num_partitions": 1, "replication_factor": 1, **topic} for topic in topics]
    return Call("create_topics", {"topics": asked, "timeout": 15_000, **fields})


def create_with(name: str, setting: str, value: str | None) -> Call:
    return create({"name": name, "configs": [{"name": setting, "value": value}]})


def create_assigned(name: str, *assignments: tuple[int, list[int]], **fields: Any) -> Call:
    assigned = [{"partition_index": index, "broker_ids": nodes} for index, nodes in assignments]
    topic = {"name": name, "num_partitions": -1, "replication_factor": -1, "assignments": assigned, **fields}
    return create(topic)


def increment(name: str, *operations: tuple[str, int, str | None], kind: int = TOPIC, **fields: Any) -> Call:
    configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in operations]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    return Call("incremental_alter_configs", {"resources": [resource], **fields})


def alter(name: str, configs: dict[str, str | None], kind: int = TOPIC) -> Call:
    listed = [{"name": key, "value": value} for key, value in configs.items()]
    resource = {"resource_type": kind, "resource_name": name, "configs": listed}
    return Call("alter_configs", {"resources": [resource]})


def describe(name: str, keys: list[str], kind: int = TOPIC) -> Call:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    return Call("describe_configs", {"resources": [resource]})


def extend(name: str, count: int, assignments: list[list[int]] | None = None, **fields: Any) -> Call:
    assigned = None if assignments is None else [{"broker_ids": nodes} for nodes in assignments]
    topic = {"name": name, "count": count, "assignments": assigned}
    return Call("create_partitions", {"topics": [topic], "timeout": 15_000, **fields})


def list_offset(name: str, timestamp: int, *, index: int = 0, epoch: int = -1) -> Call:
    asked = {"partition_index": index, "current_leader_epoch": epoch, "timestamp": timestamp}
    return Call("list_offsets", {"replica_id": -1, "topics": [{"name": name, "partitions": [asked]}]})


def metadata(*names: str, **fields: Any) -> Call:
    asked = [{"name": name} for name in names]
    return Call("metadata", {"topics": asked, "allow_auto_topic_creation": False, **fields})


def delete_records(name: str, index: int, offset: int) -> Call:
    topic = {"name": name, "partitions": [{"partition_index": index, "offset": offset}]}
    return Call("delete_records", {"topics": [topic], "timeout": 15_000})


def delete_topics(*names: str) -> Call:
    by_name = {"topics": [{"name": name} for name in names], "topic_names": list(names)}
    return Call("delete_topics", {**by_name, "timeout": 15_000})


def creations(a: str, b: str) -> list[Call]:
    return [
        create({"name": a, "num_partitions": 2, "configs": [{"name": "retention.ms", "value": "60000"}]}),
        create({"name": a}),
        create({"name": a, "replication_factor": 3}),
        create({"name": b, "replication_factor": 3}),
        create({"name": b, "replication_factor": 0}),
        create({"name": b, "num_partitions": 0}),
        create({"name": b, "num_partitions": -5}),
        create({"name": f"{b} "}),
        create({"name": ""}),
        create({"name": "."}),
        create({"name": "x" * 250}),
        create({"name": f"{b}.c"}),
        create({"name": f"{b}_c"}),
        create({"name": f"{b}d"}, {"name": f"{b}d"}, {"name": f"{b}e"}),
        create({"name": f"{b}f", "num_partitions": 3}, validate_only=True),
        create({"name": f"{b}f", "num_partitions": 20_000}),
        create({"name": "__cluster_metadata"}),
        create_with(b, "nope", "1"),
        create_with(b, "retention.ms", None),
        create_with(b, "retention.ms", "x"),
        create_with(b, "retention.ms", "-2"),
        create_with(b, "min.insync.replicas", "0"),
        create_with(b, "message.timestamp.type", "Now"),
        create_with(b, "cleanup.policy", "none"),
        create_with(b, "compression.type", "brotli"),
        create_with(b, "max.message.bytes", "2147483648"),
        create_assigned(b, (0, [9])),
        create_assigned(b, (0, [])),
        create_assigned(b, (0, [1, 1])),
        create_assigned(b, (1, [1])),
        create_assigned(b, (0, [1]), (0, [1])),
        create_assigned(b, (0, [1]), replication_factor=1),
        create_assigned(b, (0, [1]), num_partitions=1),
        create_assigned(b, (1, [1]), (0, [1])),
    ]


def configs(a: str) -> list[Call]:
    return [
        describe(a, SHARED_SETTINGS),
        describe(f"{a}-none", []),
        describe(f"{a} ", []),
        describe("", []),
        describe("1", SHARED_BROKER_SETTINGS, BROKER),
        describe("2", [], BROKER),
        describe("one", [], BROKER),
        describe("x", [], 99),
        increment(a, ("segment.ms", SET, "70000")),
        describe(a, ["segment.ms"]),
        increment(a, ("segment.ms", DELETE, None)),
        describe(a, ["segment.ms"]),
        increment(a, ("nope", DELETE, None)),
        increment(a, ("nope", SET, "1")),
        increment(a, ("nope", APPEND, "1")),
        increment(a, ("retention.ms", APPEND, "1")),
        increment(a, ("retention.ms", SET, None)),
        increment(a, ("retention.ms", SET, "1"), ("retention.ms", SET, "2")),
        increment(a, ("retention.ms", SET, "1"), ("segment.ms", SET, "x")),
        increment(f"{a}-none", ("retention.ms", SET, "1")),
        increment("", ("retention.ms", SET, "1")),
        increment(f"{a} ", ("retention.ms", SET, "1")),
        increment(a, ("cleanup.policy", APPEND, "delete")),
        describe(a, ["cleanup.policy"]),
        increment(a, ("cleanup.policy", SUBTRACT, "compact")),
        increment("1", ("num.partitions", SET, "3"), kind=BROKER),
        increment("", ("num.partitions", SET, "3"), kind=BROKER),
        increment("2", ("num.partitions", SET, "3"), kind=BROKER),
        increment("1", kind=BROKER),
        increment("1", ("num.partitions", DELETE, None), kind=BROKER),
        increment("1", ("leader.replication.throttled.rate", DELETE, None), kind=BROKER),
        increment("x", ("a", SET, "b"), kind=99),
        increment(a, ("retention.ms", SET, "5"), validate_only=True),
        alter(a, {"retention.ms": "61000"}),
        describe(a, SHARED_SETTINGS),
        alter(a, {"retention.ms": None}),
        alter(a, {"retention.ms": "x"}),
        alter(a, {"nope": "1"}),
        alter(f"{a}-none", {"retention.ms": "1"}),
        alter("", {"retention.ms": "1"}),
        alter("1", {"num.partitions": "3"}, BROKER),
        alter("x", {}, 99),
        alter("x", {}, 8),
    ]


def partitions(a: str) -> list[Call]:
    return [
        extend(a, 2),
        extend(a, 1),
        extend(a, -1),
        extend(f"{a}-none", 3),
        extend(a, 3, []),
        extend(a, 3, [[9]]),
        extend(a, 3, [[1], [1]]),
        extend(a, 3, validate_only=True),
        extend(a, 3),
        metadata(a),
        metadata(a, f"{a}-none", f"{a} "),
        metadata(a, a),
        metadata(a, f"{a}-none", include_topic_authorized_operations=True, include_cluster_authorized_operations=True),
        *(list_offset(a, timestamp) for timestamp in (-1, -2, -3, -4, -5, -6, -7, 0, 5)),
        list_offset(a, -1, index=9),
        list_offset(f"{a}-none", -1),
        list_offset(a, -1, epoch=0),
        list_offset(a, -1, epoch=5),
        delete_records(a, 0, 0),
        delete_records(a, 0, -1),
        delete_records(a, 0, 5),
        delete_records(a, 0, -2),
        delete_records(a, 9, 0),
        delete_records(f"{a}-none", 0, 0),
    ]


def cluster(a: str) -> list[Call]:
    def epochs(*asked: tuple[int, int, int]) -> Call:
        keys = ("partition", "current_leader_epoch", "leader_epoch")
        topic = {"topic": a, "partitions": [dict(zip(keys, one, strict=True)) for one in asked]}
        return Call("offset_for_leader_epoch", {"replica_id": -1, "topics": [topic]})

    def reassign(*asked: tuple[int, list[int] | None]) -> Call:
        moves = [{"partition_index": index, "replicas": replicas} for index, replicas in asked]
        return Call("alter_partition_reassignments", {"topics": [{"name": a, "partitions": moves}]})

    def pages(**fields: Any) -> Call:
        return Call("describe_topic_partitions", {"topics": [{"name": a}, {"name": f"{a}-none"}], **fields})

    none = f"{a}-none"
    return [
        epochs((0, -1, 0), (9, -1, 0), (1, 3, 0), (2, -1, 9)),
        Call("describe_cluster", {}),
        Call("describe_cluster", {"endpoint_type": 2}),
        Call("describe_cluster", {"endpoint_type": 7}),
        Call("describe_cluster", {"include_cluster_authorized_operations": True}),
        Call("elect_leaders", {"topic_partitions": [{"topic": name, "partitions": [0, 9]} for name in (a, none)]}),
        reassign((0, [1]), (1, None), (2, [2]), (9, [1])),
        reassign((0, [])),
        Call("list_partition_reassignments", {"topics": None}),
        Call("list_partition_reassignments", {"topics": [{"name": a, "partition_indexes": [0]}]}),
        Call("describe_quorum", {"topics": [{"topic_name": a, "partitions": [{"partition_index": 0}]}]}),
        Call("describe_producers", {"topics": [{"name": name, "partition_indexes": [0, 9]} for name in (a, none)]}),
        Call("list_config_resources", {"resource_types": [BROKER]}),
        Call("list_config_resources", {"resource_types": [77]}),
        pages(),
        pages(response_partition_limit=2),
        pages(cursor={"topic_name": a, "partition_index": 2}),
        pages(cursor={"topic_name": a, "partition_index": -1}),
        pages(cursor={"topic_name": "zz", "partition_index": 0}),
        Call("describe_log_dirs", {"topics": [{"topic": name, "partitions": [0, 9]} for name in (a, none)]}),
        Call("describe_log_dirs", {"topics": []}),
    ]  # fmt: skip


def deletions(a: str) -> list[Call]:
    return [
        delete_topics(f"{a}-none"),
        delete_topics(a, a),
        delete_topics(a, f"{a}-none"),
        delete_topics(a),
    ]


def shown(answer: Any, server: Server) -> Any:
    """An answer as plain values, without what is left out, its lists in an order that does not depend on the server."""
    if isinstance(answer, list | tuple):
        return sorted((shown(item, server) for item in answer), key=lambda item: json.dumps(item, sort_keys=True))
    if hasattr(answer, "__dict__"):
        kept = {name: value for name, value in vars(answer).items() if not _LEFT_OUT.fullmatch(name)}
        if "topic_config_error_code" in kept:
            # Kafka has more settings than are served here; those both have are compared by DescribeConfigs.
            kept["configs"] = bool(kept["configs"])
        return {name: shown(value, server) for name, value in kept.items()}
    if isinstance(answer, UUID):
        return str(answer) if answer in (NO_ID, STRANGER) else "an id"
    return answer.replace(str(server.data), "data") if isinstance(answer, str) else answer


def ask(server: Server, call: Call, version: int) -> Any:
    with RawClient("127.0.0.1", server.port, timeout=60) as client:
        return shown(client.call(KEYS[call.api], version, call.body), server)


def version_of(call: Call, newest: bool) -> int:
    api = APIS[KEYS[call.api]]
    return api.max if newest else api.min


@pytest.mark.parametrize("newest", [True, False], ids=["newest versions", "oldest versions"])
def test_both_say_the_same(brokers: Pair, newest: bool) -> None:
    prefix = "new" if newest else "old"
    a, b = f"{prefix}-a", f"{prefix}-b"
    calls = [*creations(a, b), *configs(a), *partitions(a), *cluster(a), *deletions(a)]
    differences = []
    for call in calls:
        version = version_of(call, newest)
        ours, kafkas = ask(brokers.ours, call, version), ask(brokers.kafka, call, version)
        # Kafka answers before its broker has learnt of a change; whoever only reads may ask again.
        deadline = time.monotonic() + 10
        reading = call.api.startswith(("describe", "list", "metadata", "offset"))
        while ours != kafkas and reading and time.monotonic() < deadline:
            time.sleep(0.2)
            kafkas = ask(brokers.kafka, call, version)
        if ours != kafkas:
            differences.append(f"{call.api} {version} {call.body}\n  ours  {ours}\n  kafka {kafkas}")
    assert not differences, "\n".join(differences)


def test_by_id(brokers: Pair) -> None:
    calls = [
        Call("metadata", {"topics": [{"name": None, "topic_id": STRANGER}]}),
        Call(
            "delete_topics",
            {
                "topics": [
                    {"name": None, "topic_id": STRANGER},
                    {"name": None, "topic_id": NO_ID},
                    {"name": "x", "topic_id": STRANGER},
                ],
                "timeout": 15_000,
            },
        ),
    ]
    for call in calls:
        version = version_of(call, newest=True)
        assert ask(brokers.ours, call, version) == ask(brokers.kafka, call, version)
