"""The transactional APIs over a socket, in every version: what is answered, and with which code."""

import os
import time
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.errors import ErrorCode
from headrace.broker.storage.batch import build
from headrace.broker.transactions.state import Producer
from headrace.broker.wire.apis import APIS
from tests.broker.rawclient import RawClient

KEYS = {api.name: api.key for api in APIS.values()}
TRANSACTIONAL = 0x10
RECORD = b"\x0e\x00\x00\x00\x01\x02x\x00"
# What every client waits out: a leader or coordinator is not ready yet, or still ends the last transaction.
PASSING = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}
LIMIT = 30.0


class Speaker(RawClient):
    """Speaks of transactions, and tries again where a client would."""

    def ask(self, name: str, version: int, body: dict[str, Any]) -> SimpleNamespace:
        until = time.monotonic() + LIMIT
        while True:
            answer = self.call(KEYS[name], version, body)
            if not _codes(answer) & PASSING or time.monotonic() > until:
                return answer
            time.sleep(0.05)

    def init(
        self, name: str | None, version: int = 4, timeout: int = 60_000, expected: Producer | None = None
    ) -> SimpleNamespace:
        body: dict[str, Any] = {"transactional_id": name, "transaction_timeout": timeout}
        if expected is not None:
            body |= {"producer_id": expected.id, "producer_epoch": expected.epoch}
        return self.ask("init_producer_id", version, body)

    def producer(self, name: str, version: int = 4) -> Producer:
        answer = self.init(name, version)
        assert answer.error_code == ErrorCode.NONE
        return Producer(answer.producer_id, answer.producer_epoch)

    def add(
        self, name: str, producer: Producer, topics: dict[str, list[int]], version: int = 3
    ) -> dict[tuple[str, int], int]:
        answer = self.ask(
            "add_partitions_to_txn",
            version,
            {
                "v3_and_below_transactional_id": name,
                "v3_and_below_producer_id": producer.id,
                "v3_and_below_producer_epoch": producer.epoch,
                "v3_and_below_topics": [{"name": topic, "partitions": indexes} for topic, indexes in topics.items()],
            },
        )
        return {
            (topic.name, result.partition_index): result.partition_error_code
            for topic in answer.results_by_topic_v3_and_below
            for result in topic.results_by_partition
        }

    def add_offsets(self, name: str, producer: Producer, group: str, version: int = 3) -> int:
        body = {"transactional_id": name, "group_id": group, **_identity(producer)}
        code: int = self.ask("add_offsets_to_txn", version, body).error_code
        return code

    def commit_offset(
        self,
        name: str,
        producer: Producer,
        group: str,
        topic: str,
        *,
        partition: int = 0,
        offset: int = 7,
        metadata: str | None = "m",
        version: int = 3,
        **member: Any,
    ) -> int:
        row = {"partition_index": partition, "committed_offset": offset, "committed_metadata": metadata}
        body = {"transactional_id": name, "group_id": group, **_identity(producer), **member}
        answer = self.ask("txn_offset_commit", version, {**body, "topics": [{"name": topic, "partitions": [row]}]})
        code: int = answer.topics[0].partitions[0].error_code
        return code

    def end(self, name: str, producer: Producer, commit: bool, version: int = 3) -> int:
        body = {"transactional_id": name, "committed": commit, **_identity(producer)}
        code: int = self.ask("end_txn", version, body).error_code
        return code

    def produce(self, name: str | None, producer: Producer, topic: str, sequence: int = 0, version: int = 9) -> int:
        now = int(time.time() * 1000)
        batch = build(
            RECORD,
            attributes=TRANSACTIONAL,
            count=1,
            base_timestamp=now,
            max_timestamp=now,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
        )
        data = {"name": topic, "partition_data": [{"index": 0, "records": bytes(batch)}]}
        body = {"transactional_id": name, "acks": -1, "timeout": 5_000, "topic_data": [data]}
        code: int = self.ask("produce", version, body).responses[0].partition_responses[0].error_code
        return code

    def fetched_offset(self, group: str, topic: str) -> int:
        asked = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}
        answer = self.ask("offset_fetch", 8, {"groups": [asked], "require_stable": False})
        offset: int = answer.groups[0].topics[0].partitions[0].committed_offset
        return offset

    def stable_end(self, topic: str) -> tuple[int, int]:
        """The last stable offset and the end of the log."""
        ends = []
        for isolation_level in (1, 0):
            asked = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]
            answer = self.call(
                KEYS["list_offsets"],
                5,
                {
                    "replica_id": -1,
                    "isolation_level": isolation_level,
                    "topics": [{"name": topic, "partitions": asked}],
                },
            )
            ends.append(answer.topics[0].partitions[0].offset)
        return ends[0], ends[1]


def _identity(producer: Producer) -> dict[str, int]:
    return {"producer_id": producer.id, "producer_epoch": producer.epoch}


def _codes(answer: object) -> set[int]:
    if isinstance(answer, list):
        return {code for each in answer for code in _codes(each)}
    if isinstance(answer, SimpleNamespace):
        found = set()
        for name, value in vars(answer).items():
            if name.endswith("error_code") and isinstance(value, int):
                found.add(value)
            else:
                found |= _codes(value)
        return found
    return set()


@pytest.fixture
def speaker(broker_address: str) -> Iterator[Speaker]:
    host, port = broker_address.rsplit(":", 1)
    with Speaker(host, int(port)) as connected:
        yield connected


@pytest.fixture
def name(speaker: Speaker) -> str:
    """A transactional id of this test's own, whose coordinator is known."""
    chosen = f"txn-{uuid.uuid4().hex[:12]}"
    speaker.ask("find_coordinator", 4, {"key_type": 1, "coordinator_keys": [chosen]})
    return chosen


@pytest.fixture
def made(speaker: Speaker, topic: str) -> str:
    """A topic with one partition, ready to be written to."""
    wanted = {"name": topic, "num_partitions": 1, "replication_factor": 1}
    answer = speaker.call(KEYS["create_topics"], 5, {"topics": [wanted], "timeout": 10_000})
    assert answer.topics[0].error_code == ErrorCode.NONE
    until = time.monotonic() + LIMIT
    while _codes(speaker.call(KEYS["metadata"], 4, {"topics": [{"name": topic}]})) != {0}:
        assert time.monotonic() < until
        time.sleep(0.05)
    return topic


@pytest.fixture
def group(speaker: Speaker, topic: str) -> str:
    chosen = f"group-of-{topic}"
    speaker.ask("find_coordinator", 4, {"key_type": 0, "coordinator_keys": [chosen]})
    return chosen


@pytest.mark.parametrize(
    ("init", "add", "offsets", "commit_offset", "end"),
    [(0, 0, 0, 0, 0), (1, 1, 1, 1, 1), (2, 2, 2, 2, 2), (3, 3, 3, 3, 3), (4, 3, 4, 4, 4), (5, 3, 4, 4, 4)],
)
def test_a_transaction_in_every_version(
    speaker: Speaker,
    name: str,
    made: str,
    group: str,
    init: int,
    add: int,
    offsets: int,
    commit_offset: int,
    end: int,
) -> None:
    producer = speaker.producer(name, init)
    for number, commit in enumerate([True, False]):
        assert speaker.add(name, producer, {made: [0]}, add) == {(made, 0): ErrorCode.NONE}
        assert speaker.produce(name, producer, made, number) == ErrorCode.NONE
        stable, log_end = speaker.stable_end(made)
        assert stable < log_end
        assert speaker.add_offsets(name, producer, group, offsets) == ErrorCode.NONE
        staged = speaker.commit_offset(name, producer, group, made, offset=100 + number, version=commit_offset)
        assert staged == ErrorCode.NONE
        assert speaker.fetched_offset(group, made) == (-1 if commit else 100)
        assert speaker.end(name, producer, commit, end) == ErrorCode.NONE
    until = time.monotonic() + LIMIT
    while speaker.stable_end(made) != (4, 4) or speaker.fetched_offset(group, made) != 100:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_ids_for_producers_without_transactions(speaker: Speaker) -> None:
    answers = [speaker.init(None, version, timeout=0) for version in range(6)]
    assert {answer.error_code for answer in answers} == {ErrorCode.NONE}
    assert len({answer.producer_id for answer in answers}) == len(answers)
    known = Producer(answers[0].producer_id, 0)
    again = speaker.init(None, 4, timeout=0, expected=known)
    assert (again.error_code, again.producer_epoch) == (ErrorCode.NONE, 0)
    assert again.producer_id != known.id


def test_requests_to_begin_that_make_no_sense(speaker: Speaker, name: str) -> None:
    refused = {
        ErrorCode.INVALID_REQUEST: [
            speaker.init(""),
            speaker.init(name, expected=Producer(5, -1)),
            speaker.init(name, expected=Producer(-1, 5)),
        ],
        ErrorCode.INVALID_TRANSACTION_TIMEOUT: [
            speaker.init(name, timeout=0),
            speaker.init(name, timeout=900_001),
        ],
    }
    for code, answers in refused.items():
        assert [answer.error_code for answer in answers] == [code] * len(answers)
        assert {(answer.producer_id, answer.producer_epoch) for answer in answers} <= {(-1, -1), (-1, 0)}


@pytest.mark.parametrize("old", [True, False])
def test_a_fenced_producer_is_told_in_words_its_version_knows(
    speaker: Speaker, name: str, made: str, group: str, old: bool
) -> None:
    first = speaker.producer(name)
    second = speaker.producer(name)
    assert second == Producer(first.id, first.epoch + 1)
    fenced = ErrorCode.INVALID_PRODUCER_EPOCH if old else ErrorCode.PRODUCER_FENCED
    version = 1 if old else 2
    assert speaker.add(name, first, {made: [0]}, version) == {(made, 0): fenced}
    assert speaker.add_offsets(name, first, group, version) == fenced
    assert speaker.end(name, first, True, version) == fenced
    assert speaker.init(name, 3 if old else 4, expected=first).error_code == fenced
    assert speaker.produce(name, first, made) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert speaker.add_offsets(name, second, group) == ErrorCode.NONE
    told = speaker.commit_offset(name, first, group, made, version=2 if old else 3)
    assert told == ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_stranger_is_refused(speaker: Speaker, name: str, made: str, group: str) -> None:
    producer = speaker.producer(name)
    unknown = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    for whose, stranger in ((name, Producer(producer.id + 999, 0)), (name + "-other", producer)):
        assert speaker.add(whose, stranger, {made: [0]}) == {(made, 0): unknown}
        assert speaker.add_offsets(whose, stranger, group) == unknown
        assert speaker.end(whose, stranger, True) == unknown
        assert speaker.produce(whose, stranger, made) == unknown
        assert speaker.commit_offset(whose, stranger, group, made) == unknown


def test_a_producer_asks_for_its_next_epoch_twice(speaker: Speaker, name: str) -> None:
    first = speaker.producer(name)
    second = speaker.init(name, expected=first)
    again = speaker.init(name, expected=first)
    assert (second.error_code, second.producer_epoch) == (ErrorCode.NONE, first.epoch + 1)
    assert (again.error_code, again.producer_epoch) == (ErrorCode.NONE, first.epoch + 1)


def test_all_partitions_are_added_or_none(speaker: Speaker, name: str, made: str) -> None:
    producer = speaker.producer(name)
    assert speaker.add(name, producer, {made: [0, 7], "absent-" + made: [0]}) == {
        (made, 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
        (made, 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("absent-" + made, 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert speaker.end(name, producer, True) == ErrorCode.INVALID_TXN_STATE


def test_ends_that_do_not_fit(speaker: Speaker, name: str, made: str) -> None:
    producer = speaker.producer(name)
    assert speaker.end(name, producer, True) == ErrorCode.INVALID_TXN_STATE
    assert speaker.end(name, producer, False) == ErrorCode.INVALID_TXN_STATE
    assert speaker.end("", producer, True) == ErrorCode.INVALID_REQUEST
    for commit in (True, False):
        assert speaker.add(name, producer, {made: [0]}) == {(made, 0): ErrorCode.NONE}
        assert speaker.end(name, producer, commit) == ErrorCode.NONE
        assert speaker.end(name, producer, commit) == ErrorCode.NONE
        assert speaker.end(name, producer, not commit) == ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize(
    ("version", "code"), [(10, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE)]
)
def test_a_partition_that_was_not_added_is_not_written(
    speaker: Speaker, name: str, made: str, version: int, code: ErrorCode
) -> None:
    producer = speaker.producer(name)
    assert speaker.produce(name, producer, made, version=version) == code
    assert speaker.stable_end(made) == (0, 0)


def test_transactional_records_need_a_transactional_id(speaker: Speaker, name: str, made: str) -> None:
    producer = speaker.producer(name)
    assert speaker.add(name, producer, {made: [0]}) == {(made, 0): ErrorCode.NONE}
    assert speaker.produce(None, producer, made) == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_offsets_that_are_refused(speaker: Speaker, name: str, made: str, group: str) -> None:
    producer = speaker.producer(name)
    assert speaker.add(name, producer, {made: [0]}) == {(made, 0): ErrorCode.NONE}
    assert speaker.commit_offset(name, producer, group, made) == ErrorCode.INVALID_TXN_STATE
    assert speaker.commit_offset(name, producer, group, made, version=4) == ErrorCode.TRANSACTION_ABORTABLE
    assert speaker.add_offsets(name, producer, group) == ErrorCode.NONE
    commit = speaker.commit_offset
    stale = commit(name, producer, group, made, generation_id=4, member_id="m")
    assert stale == ErrorCode.ILLEGAL_GENERATION
    assert commit(name, producer, group, made, partition=3) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(name, producer, group, "absent-" + made) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(name, producer, group, made, metadata="m" * 5_000) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert commit(name, producer, "", made) == ErrorCode.INVALID_GROUP_ID
    assert commit(name, producer, group, made, metadata=None) == ErrorCode.NONE
    assert speaker.end(name, producer, True) == ErrorCode.NONE


@pytest.mark.skipif(
    os.environ.get("HEADRACE_TEST_BROKER") == "kafka", reason="Kafka's own answer is transaction.version 2"
)
def test_a_late_end_does_not_end_a_later_transaction(
    broker_address: str, speaker: Speaker, name: str, made: str
) -> None:
    """KAFKA-17754: an EndTxn that was given up arrives on its old connection, after the next transaction began."""
    producer = speaker.producer(name)
    assert speaker.add(name, producer, {made: [0]}) == {(made, 0): ErrorCode.NONE}
    assert speaker.produce(name, producer, made, 0) == ErrorCode.NONE
    host, port = broker_address.rsplit(":", 1)
    with Speaker(host, int(port)) as newer:
        assert newer.end(name, producer, True) == ErrorCode.NONE
        assert newer.add(name, producer, {made: [0]}) == {(made, 0): ErrorCode.NONE}
        assert newer.produce(name, producer, made, 1) == ErrorCode.NONE
        assert speaker.end(name, producer, True) == ErrorCode.INVALID_TXN_STATE
        assert newer.stable_end(made) == (2, 3)
        assert newer.end(name, producer, False) == ErrorCode.NONE
        assert newer.stable_end(made) == (4, 4)


def test_describe(speaker: Speaker, name: str, made: str) -> None:
    before = int(time.time() * 1000) - 1_000
    producer = speaker.producer(name)
    speaker.add(name, producer, {made: [0]})
    asked = {"transactional_ids": [name, "absent-" + name, ""]}
    known, absent, empty = speaker.ask("describe_transactions", 0, asked).transaction_states
    assert absent.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert empty.error_code == ErrorCode.INVALID_REQUEST
    assert (known.error_code, known.transactional_id) == (ErrorCode.NONE, name)
    assert known.transaction_state == "Ongoing"
    assert known.transaction_timeout == 60_000
    assert before <= known.transaction_start_time <= before + 60_000
    assert Producer(known.producer_id, known.producer_epoch) == producer
    assert [(topic.topic, topic.partitions) for topic in known.topics] == [(made, [0])]


def test_list(speaker: Speaker, name: str, made: str) -> None:
    names = [f"{name}-{number}" for number in range(3)]
    producers = [speaker.producer(each) for each in names]
    for each, producer in zip(names[:2], producers, strict=False):
        speaker.add(each, producer, {made: [0]})
    assert speaker.end(names[0], producers[0], True) == ErrorCode.NONE

    def listed(version: int = 0, **filters: Any) -> list[str]:
        answer = speaker.ask("list_transactions", version, filters)
        assert answer.error_code == ErrorCode.NONE
        return sorted(
            each.transactional_id for each in answer.transaction_states if each.transactional_id.startswith(name)
        )

    assert listed() == names
    assert listed(state_filters=["Ongoing"]) == [names[1]]
    assert listed(state_filters=["Ongoing", "Empty", "Dead"]) == names[1:]
    assert listed(producer_id_filters=[producers[2].id]) == [names[2]]
    assert listed(producer_id_filters=[producers[2].id], state_filters=["Ongoing"]) == []
    assert listed(1, duration_filter=600_000, state_filters=["Ongoing"]) == []
    assert listed(1, duration_filter=0, state_filters=["Ongoing"]) == [names[1]]
    assert listed(2, transactional_id_pattern=f"{name}-[01]") == names[:2]
    assert listed(2, transactional_id_pattern="") == names
    answer = speaker.ask("list_transactions", 0, {"state_filters": ["Nonsense", "Ongoing"]})
    assert answer.unknown_state_filters == ["Nonsense"]
    answer = speaker.ask("list_transactions", 2, {"transactional_id_pattern": "("})
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
