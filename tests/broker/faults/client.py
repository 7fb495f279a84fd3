"""What a client asks of a broker, one call each, with nothing done behind the test's back: no retry, no batching."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

from headrace.broker.errors import ErrorCode
from tests.broker.faults.batches import Batch, decode
from tests.broker.rawclient import RawClient

EARLIEST, LATEST = -2, -1
ALL = -1


class Refused(Exception):
    """The broker answered with an error."""

    def __init__(self, code: int, message: str | None = None) -> None:
        self.code = ErrorCode(code)
        super().__init__(f"{self.code.name}: {message}")


class Record(NamedTuple):
    offset: int
    value: bytes


@dataclass(frozen=True)
class Fetched:
    batches: list[Batch]
    aborted: list[tuple[int, int]]
    """(producer id, first offset)"""
    high_watermark: int
    last_stable_offset: int
    log_start: int


class Committed(NamedTuple):
    offset: int
    metadata: str


class Client:
    def __init__(self, address: tuple[str, int], timeout: float = 20.0) -> None:
        self.raw = RawClient(*address, client_id="faults", timeout=timeout)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.raw.close()

    # -- topics

    def topics(self) -> dict[str, int]:
        """Each topic and how many partitions it has."""
        answer = self.raw.call(3, 9, {"topics": None, "allow_auto_topic_creation": False})
        return {topic.name: len(topic.partitions) for topic in answer.topics}

    def create_topic(self, name: str, partitions: int, configs: dict[str, str] | None = None) -> None:
        wanted = [{"name": key, "value": value} for key, value in (configs or {}).items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": wanted}
        answer = self.raw.call(19, 5, {"topics": [topic], "timeout": 10_000})
        _check(answer.topics[0])

    def delete_topic(self, name: str) -> None:
        answer = self.raw.call(20, 5, {"topic_names": [name], "timeout": 10_000})
        _check(answer.responses[0])

    def set_config(self, topic: str, name: str, value: str) -> None:
        change = {"name": name, "config_operation": 0, "value": value}
        resource = {"resource_type": 2, "resource_name": topic, "configs": [change]}
        answer = self.raw.call(44, 1, {"resources": [resource]})
        _check(answer.responses[0])

    def config(self, topic: str, name: str) -> str | None:
        resource = {"resource_type": 2, "resource_name": topic, "configuration_keys": [name]}
        [result] = self.raw.call(32, 4, {"resources": [resource]}).results
        _check(result)
        [entry] = result.configs
        value: str | None = entry.value
        return value

    def add_partitions(self, name: str, total: int) -> None:
        body = {"topics": [{"name": name, "count": total, "assignments": None}], "timeout": 10_000}
        _check(self.raw.call(37, 1, body).results[0])

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        wanted = {"name": topic, "partitions": [{"partition_index": partition, "offset": before}]}
        answer = self.raw.call(21, 2, {"topics": [wanted], "timeout": 10_000})
        result = answer.topics[0].partitions[0]
        _check(result)
        low: int = result.low_watermark
        return low

    # -- records

    def send_produce(
        self, topic: str, partition: int, batch: bytes, transactional_id: str | None = None, acks: int = ALL
    ) -> int:
        data = {"name": topic, "partition_data": [{"index": partition, "records": batch}]}
        body = {"transactional_id": transactional_id, "acks": acks, "timeout": 10_000, "topic_data": [data]}
        return self.raw.send(0, 9, body)

    def receive_produce(self, correlation_id: int) -> int:
        answer = self.raw.receive(0, 9, correlation_id)
        result = answer.responses[0].partition_responses[0]
        _check(result)
        offset: int = result.base_offset
        return offset

    def produce(
        self, topic: str, partition: int, batch: bytes, transactional_id: str | None = None, acks: int = ALL
    ) -> int:
        """The offset of the batch's first record."""
        return self.receive_produce(self.send_produce(topic, partition, batch, transactional_id, acks))

    def produce_to_many(self, topic: str, batches: dict[int, bytes]) -> dict[int, int]:
        """One request for several partitions, answered when all of them are done; the offset of each."""
        data = [{"index": partition, "records": batch} for partition, batch in batches.items()]
        body = {"acks": ALL, "timeout": 10_000, "topic_data": [{"name": topic, "partition_data": data}]}
        offsets = {}
        for result in self.raw.call(0, 9, body).responses[0].partition_responses:
            _check(result)
            offsets[result.index] = result.base_offset
        return offsets

    def fetch(
        self, topic: str, partition: int, offset: int, *, committed: bool = False, max_bytes: int = 1 << 20
    ) -> Fetched:
        wanted = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": max_bytes}
        body = {
            "max_wait": 0,
            "min_bytes": 0,
            "max_bytes": max_bytes,
            "isolation_level": int(committed),
            "session_epoch": -1,
            "topics": [{"topic": topic, "partitions": [wanted | {"current_leader_epoch": -1}]}],
        }
        answer = self.raw.call(1, 11, body)
        _check(answer)
        result = answer.responses[0].partitions[0]
        _check(result)
        aborted = [(entry.producer_id, entry.first_offset) for entry in result.aborted_transactions or []]
        return Fetched(
            list(decode(result.records or b"")),
            aborted,
            result.high_watermark,
            result.last_stable_offset,
            result.log_start_offset,
        )

    def read(self, topic: str, partition: int, *, committed: bool = False, start: int | None = None) -> "Log":
        """All of a partition that this isolation level may see."""
        offset = self.offset(topic, partition, EARLIEST) if start is None else start
        log = Log(offset, offset)
        ended: set[int] = set()
        while True:
            fetched = self.fetch(topic, partition, offset, committed=committed)
            log.high_watermark, log.last_stable_offset = fetched.high_watermark, fetched.last_stable_offset
            log.start = fetched.log_start
            new = [batch for batch in fetched.batches if batch.next_offset > offset]
            if not new:
                return log
            pending = sorted(fetched.aborted, key=lambda entry: entry[1])
            for batch in new:
                assert batch.base_offset <= offset, f"a hole in {topic}-{partition} before {batch.base_offset}"
                while pending and pending[0][1] <= batch.base_offset:
                    ended.add(pending.pop(0)[0])
                if batch.control:
                    ended.discard(batch.producer_id)
                elif not (committed and batch.transactional and batch.producer_id in ended):
                    log.add(batch)
                offset = log.end = batch.next_offset

    def offset(self, topic: str, partition: int, timestamp: int, *, committed: bool = False) -> int:
        wanted = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": timestamp}
        body = {"replica_id": -1, "isolation_level": int(committed)}
        answer = self.raw.call(2, 6, body | {"topics": [{"name": topic, "partitions": [wanted]}]})
        result = answer.topics[0].partitions[0]
        _check(result)
        offset: int = result.offset
        return offset

    # -- producers and transactions

    def init_producer(self, transactional_id: str | None = None) -> tuple[int, int]:
        """The producer's id and epoch."""
        body = {"transactional_id": transactional_id, "transaction_timeout": 60_000}
        answer = self.raw.call(22, 4, body | {"producer_id": -1, "producer_epoch": -1})
        _check(answer)
        return answer.producer_id, answer.producer_epoch

    def add_partition(self, transactional_id: str, producer: tuple[int, int], topic: str, partition: int) -> None:
        body = {
            "v3_and_below_transactional_id": transactional_id,
            "v3_and_below_producer_id": producer[0],
            "v3_and_below_producer_epoch": producer[1],
            "v3_and_below_topics": [{"name": topic, "partitions": [partition]}],
        }
        answer = self.raw.call(24, 3, body)
        code = answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
        _check(SimpleNamespace(error_code=code))

    def add_offsets(self, transactional_id: str, producer: tuple[int, int], group: str) -> None:
        _check(self.raw.call(25, 3, _transaction(transactional_id, producer) | {"group_id": group}))

    def stage_offset(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        group: str,
        topic: str,
        partition: int,
        entry: Committed,
    ) -> None:
        body = _transaction(transactional_id, producer) | {
            "group_id": group,
            "generation_id": -1,
            "member_id": "",
            "topics": [{"name": topic, "partitions": [_offset_row(partition, entry)]}],
        }
        answer = self.raw.call(28, 3, body)
        _check(answer.topics[0].partitions[0])

    def end_transaction(self, transactional_id: str, producer: tuple[int, int], *, commit: bool) -> None:
        _check(self.raw.call(26, 3, _transaction(transactional_id, producer) | {"committed": commit}))

    # -- groups

    def commit_offset(self, group: str, topic: str, partition: int, entry: Committed) -> None:
        body = {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{"name": topic, "partitions": [_offset_row(partition, entry)]}],
        }
        answer = self.raw.call(8, 8, body)
        _check(answer.topics[0].partitions[0])

    def committed_offset(self, group: str, topic: str, partition: int) -> Committed | None:
        body = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [partition]}]}
        answer = self.raw.call(9, 7, body)
        _check(answer)
        result = answer.topics[0].partitions[0]
        _check(result)
        return None if result.committed_offset == -1 else Committed(result.committed_offset, result.metadata)

    def join(self, group: str, member_id: str, assignment: bytes) -> "Membership":
        """Join a group nobody else is in, and give oneself that assignment."""
        body = {
            "group_id": group,
            "session_timeout": 1_000_000,
            "rebalance_timeout": 1_000_000,
            "member_id": member_id,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"faults"}],
        }
        answer = self.raw.call(11, 5, body)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            answer = self.raw.call(11, 5, body | {"member_id": answer.member_id})
        _check(answer)
        membership = Membership(group, answer.member_id, answer.generation_id, assignment)
        mine = [{"member_id": membership.member_id, "assignment": assignment}]
        body = {"group_id": group, "generation_id": membership.generation, "member_id": membership.member_id}
        _check(self.raw.call(14, 3, body | {"assignments": mine}))
        return membership

    def heartbeat(self, membership: "Membership") -> None:
        body = {
            "group_id": membership.group,
            "generation_id": membership.generation,
            "member_id": membership.member_id,
        }
        _check(self.raw.call(12, 3, body))

    def assignment(self, membership: "Membership") -> bytes | None:
        """What the group says this member has."""
        [group] = self.raw.call(15, 3, {"groups": [membership.group]}).groups
        _check(group)
        found = {member.member_id: member.member_assignment for member in group.members}
        assignment: bytes | None = found.get(membership.member_id)
        return assignment


class Membership(NamedTuple):
    group: str
    member_id: str
    generation: int
    assignment: bytes


class Log:
    """What a reader saw of a partition."""

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.high_watermark = end
        self.last_stable_offset = end
        self.records: dict[int, bytes] = {}
        self.batches: list[Batch] = []

    def add(self, batch: Batch) -> None:
        self.batches.append(batch)
        for number, value in enumerate(batch.values):
            assert batch.base_offset + number not in self.records
            self.records[batch.base_offset + number] = value


def _transaction(transactional_id: str, producer: tuple[int, int]) -> dict[str, Any]:
    return {"transactional_id": transactional_id, "producer_id": producer[0], "producer_epoch": producer[1]}


def _offset_row(partition: int, entry: Committed) -> dict[str, Any]:
    return {
        "partition_index": partition,
        "committed_offset": entry.offset,
        "committed_leader_epoch": -1,
        "committed_metadata": entry.metadata,
    }


def _check(result: SimpleNamespace) -> None:
    if result.error_code:
        raise Refused(result.error_code, getattr(result, "error_message", None))
