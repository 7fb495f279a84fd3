"""Share consumers for tests: confluent-kafka's, and a raw one that says exactly what a test wants to say."""

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from confluent_kafka import Message, Producer, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from headrace.broker.wire.apis import APIS
from tests.broker.rawclient import RawClient

KEYS = {api.name: api.key for api in APIS.values()}
LIMIT = 30.0
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
Range = tuple[int, int]


def make_topic(address: str, topic: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    overrides = {name.replace("_", "."): value for name, value in config.items()}
    admin.create_topics([NewTopic(topic, partitions, 1, config=overrides)])[topic].result(LIMIT)


def configure(address: str, group: str, **config: str) -> None:
    """`configure(a, g, share_auto_offset_reset="earliest")` sets share.auto.offset.reset."""
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in config.items()
    ]
    resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    admin.incremental_alter_configs([resource])[resource].result(LIMIT)


def send(address: str, topic: str, values: Iterable[str], *, partition: int = 0, one_by_one: bool = False) -> None:
    producer = Producer(
        {"bootstrap.servers": address, "acks": "all", "log_level": 0, "linger.ms": 0 if one_by_one else 5}
    )
    for value in values:
        producer.produce(topic, value.encode(), partition=partition)
        if one_by_one:
            assert producer.flush(LIMIT) == 0
    assert producer.flush(LIMIT) == 0


def share_consumer(address: str, group: str, topics: Sequence[str], **config: Any) -> ShareConsumer:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    consumer = ShareConsumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            "log_level": 0,
            **settings,
        }
    )
    consumer.subscribe(list(topics))
    return consumer


def polled(consumer: ShareConsumer, until: Callable[[list[Message]], bool], limit: float = LIMIT) -> list[Message]:
    """Poll, accepting everything, until it is enough."""
    found: list[Message] = []
    deadline = time.monotonic() + limit
    while not until(found):
        assert time.monotonic() < deadline, f"only {len(found)} messages came"
        for message in consumer.poll(0.2):
            assert message.error() is None, message.error()
            consumer.acknowledge(message)
            found.append(message)
    return found


class RawMember:
    """A member of a share group that sends what it is told to, on a connection of its own."""

    def __init__(self, address: str, group: str, member_id: str | None = None, *, version: int = 2) -> None:
        host, port = address.split(":")
        self.client = RawClient(host, int(port), timeout=LIMIT)
        self.group = group
        self.member_id = member_id or str(uuid.uuid4())
        self.version = version
        self.member_epoch = 0
        self.epoch = 0

    def call(self, name: str, version: int, body: Mapping[str, Any]) -> SimpleNamespace:
        return self.client.call(KEYS[name], version, body)

    def heartbeat(self, *topics: str, epoch: int | None = None) -> SimpleNamespace:
        answer = self.call(
            "share_group_heartbeat",
            1,
            {
                "group_id": self.group,
                "member_id": self.member_id,
                "member_epoch": self.member_epoch if epoch is None else epoch,
                "subscribed_topic_names": list(topics) or None,
            },
        )
        if not answer.error_code:
            self.member_epoch = answer.member_epoch
        return answer

    def topic_id(self, topic: str) -> UUID:
        answer = self.call("metadata", 12, {"topics": [{"topic_id": UUID(int=0), "name": topic}]})
        found: UUID = answer.topics[0].topic_id
        return found

    def join(self, topic: str) -> "RawMember":
        self.topic = self.topic_id(topic)
        answer = self.heartbeat(topic)
        assert answer.error_code == 0, answer
        return self

    def fetch(
        self,
        *acks: tuple[int, int, Sequence[int]],
        most: int = 500,
        wait_ms: int = 0,
        epoch: int | None = None,
        partitions: Sequence[int] = (0,),
        **more: Any,
    ) -> SimpleNamespace:
        """Fetch with the next epoch of the session; `acks` are of partition 0."""
        epoch = self.epoch if epoch is None else epoch
        wanted = [
            {"partition_index": index, "acknowledgement_batches": _batches(acks) if index == 0 else []}
            for index in partitions
        ]
        answer = self.call(
            "share_fetch",
            self.version,
            {
                "group_id": self.group,
                "member_id": self.member_id,
                "share_session_epoch": epoch,
                "max_wait": wait_ms,
                "min_bytes": 1,
                "max_bytes": 1 << 20,
                "max_records": most,
                "batch_size": most,
                "topics": [{"topic_id": self.topic, "partitions": wanted}] if epoch == 0 or acks else [],
                "forgotten_topics_data": [],
                **more,
            },
        )
        if not answer.error_code:
            self.epoch = 0 if epoch == -1 else epoch + 1
        return answer

    def acquire(self, most: int = 500, wait_ms: int = 0, **more: Any) -> list[tuple[int, int, int]]:
        """The ranges of partition 0 that were acquired, with their delivery counts."""
        answer = self.fetch(most=most, wait_ms=wait_ms, **more)
        assert answer.error_code == 0, answer
        return [
            (acquired.first_offset, acquired.last_offset, acquired.delivery_count)
            for topic in answer.responses
            for partition in topic.partitions
            for acquired in partition.acquired_records
            if partition.error_code == 0
        ]

    def acknowledge(
        self, *acks: tuple[int, int, Sequence[int]], epoch: int | None = None, renew: bool = False
    ) -> tuple[int, int]:
        """The error as a whole, and that of partition 0."""
        epoch = self.epoch if epoch is None else epoch
        answer = self.call(
            "share_acknowledge",
            self.version,
            {
                "group_id": self.group,
                "member_id": self.member_id,
                "share_session_epoch": epoch,
                "is_renew_ack": renew,
                "topics": [
                    {
                        "topic_id": self.topic,
                        "partitions": [{"partition_index": 0, "acknowledgement_batches": _batches(acks)}],
                    }
                ],
            },
        )
        if not answer.error_code:
            self.epoch = 0 if epoch == -1 else epoch + 1
        partitions = [partition for topic in answer.responses for partition in topic.partitions]
        return answer.error_code, partitions[0].error_code if partitions else 0

    def start_offset(self, topic: str, partition: int = 0) -> tuple[int, int]:
        """Where the group stands, and its lag."""
        answer = self.call(
            "describe_share_group_offsets",
            1,
            {"groups": [{"group_id": self.group, "topics": [{"topic_name": topic, "partitions": [partition]}]}]},
        )
        found = answer.groups[0].topics[0].partitions[0]
        return found.start_offset, found.lag

    def close(self) -> None:
        self.client.close()


def _batches(acks: Sequence[tuple[int, int, Sequence[int]]]) -> list[dict[str, Any]]:
    return [{"first_offset": a, "last_offset": b, "acknowledge_types": list(types)} for a, b, types in acks]
