"""What a share group answers, request by request: sessions and their epochs, locks, acknowledgements, offsets."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest
from confluent_kafka import Producer

from headrace.broker.errors import ErrorCode
from tests.broker.share_clients import (
    ACCEPT,
    LIMIT,
    REJECT,
    RELEASE,
    RENEW,
    RawMember,
    configure,
    make_topic,
    send,
)
from tests.peers import Server, broker_for_tests

MakeMember = Callable[..., RawMember]
LOCK_S = 1.0
SETTINGS = {
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.min.session.timeout.ms": "1000",
    "group.share.min.heartbeat.interval.ms": "100",
}
MOST_SESSIONS = 40


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = SETTINGS | {"group.share.max.share.sessions": str(MOST_SESSIONS), "group.share.max.size": "3"}
    with broker_for_tests(tmp_path_factory.mktemp("share"), settings) as running:
        yield running


@pytest.fixture
def jobs(broker: Server, topic: str) -> str:
    """A topic, and a group of the same name that reads it from the beginning."""
    make_topic(broker.address, topic)
    configure(broker.address, topic, share_auto_offset_reset="earliest", share_record_lock_duration_ms="1000")
    return topic


@pytest.fixture
def member(broker: Server, jobs: str) -> Iterator[MakeMember]:
    made: list[RawMember] = []

    def make(version: int = 2) -> RawMember:
        made.append(RawMember(broker.address, jobs, version=version))
        return made[-1].join(jobs)

    yield make
    for one in made:
        one.close()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# Membership


def test_a_heartbeat_is_refused_as_kafka_does(broker: Server, jobs: str, member: MakeMember) -> None:
    one = member()
    assert one.heartbeat(epoch=0).error_code == ErrorCode.INVALID_REQUEST, "who joins names topics"
    assert one.heartbeat(epoch=one.member_epoch + 1).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert one.heartbeat(epoch=-2).error_code == ErrorCode.INVALID_REQUEST
    assert one.heartbeat().error_code == 0
    stranger = RawMember(broker.address, jobs)
    assert stranger.heartbeat(epoch=1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert stranger.heartbeat(epoch=-1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    stranger.group = "nobody"
    assert stranger.heartbeat(epoch=-1).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    stranger.close()
    member(), member()
    full = RawMember(broker.address, jobs)
    assert full.heartbeat(jobs).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    full.close()


def test_an_assignment_is_told_when_it_changes_or_was_lost(jobs: str, member: MakeMember) -> None:
    one = member()
    before = one.member_epoch
    assert one.heartbeat().assignment is None
    two = member()
    changed = one.heartbeat()
    assert changed.member_epoch > before
    assert [t.partitions for t in changed.assignment.topic_partitions] == [[0]], "a partition has both"
    assert one.heartbeat(epoch=before).assignment is not None, "the answer may have been lost"
    assert two.heartbeat(epoch=-1).member_epoch == -1


def test_a_silent_member_is_removed_and_what_it_held_is_given_to_others(
    broker: Server, jobs: str, member: MakeMember
) -> None:
    configure(broker.address, jobs, share_session_timeout_ms="1000", share_heartbeat_interval_ms="100")
    configure(broker.address, jobs, share_record_lock_duration_ms="60000")
    send(broker.address, jobs, ["a"])
    silent, other = member(), member()
    assert silent.acquire() == [(0, 0, 1)]
    other.acquire()

    def alive_and_served() -> bool:
        assert other.heartbeat().error_code == 0
        return other.acquire() == [(0, 0, 2)]

    wait_for(alive_and_served)
    assert silent.heartbeat().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert silent.acknowledge((0, 0, [ACCEPT])) == (0, ErrorCode.INVALID_RECORD_STATE)


# Records


@pytest.mark.parametrize("version", [1, 2])
def test_single_records_are_handed_out_of_one_batch(
    broker: Server, jobs: str, member: MakeMember, version: int
) -> None:
    send(broker.address, jobs, map(str, range(5)))
    one, two = member(version), member(version)
    assert [one.acquire(most=1), two.acquire(most=1), one.acquire(most=2), two.acquire()] == [
        [(0, 0, 1)],
        [(1, 1, 1)],
        [(2, 3, 1)],
        [(4, 4, 1)],
    ]


def test_a_lock_that_times_out_gives_the_record_to_who_waits(broker: Server, jobs: str, member: MakeMember) -> None:
    send(broker.address, jobs, ["a"])
    holder, waiting = member(), member()
    began = time.monotonic()
    assert holder.acquire() == [(0, 0, 1)]
    assert waiting.acquire(wait_ms=10_000) == [(0, 0, 2)]
    assert LOCK_S - 0.01 <= time.monotonic() - began < LOCK_S + 1.5
    assert holder.acknowledge((0, 0, [ACCEPT])) == (0, ErrorCode.INVALID_RECORD_STATE)
    assert waiting.acknowledge((0, 0, [ACCEPT])) == (0, 0)
    assert waiting.start_offset(jobs) == (1, 0)


def test_a_waiting_fetch_is_answered_when_a_record_is_written_or_released(
    broker: Server, jobs: str, member: MakeMember
) -> None:
    one, two = member(), member()
    one.acquire(), two.acquire()
    sent = one.client.send(78, 2, _long_poll(one))
    send(broker.address, jobs, ["a"])
    answer = one.client.receive(78, 2, sent)
    assert [a.first_offset for t in answer.responses for p in t.partitions for a in p.acquired_records] == [0]
    one.epoch += 1
    sent = two.client.send(78, 2, _long_poll(two))
    assert one.acknowledge((0, 0, [RELEASE])) == (0, 0)
    answer = two.client.receive(78, 2, sent)
    assert [a.delivery_count for t in answer.responses for p in t.partitions for a in p.acquired_records] == [2]


def _long_poll(member: RawMember) -> dict[str, object]:
    return {
        "group_id": member.group,
        "member_id": member.member_id,
        "share_session_epoch": member.epoch,
        "max_wait": 20_000,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "max_records": 10,
        "batch_size": 10,
    }


def test_a_record_delivered_too_often_is_archived(broker: Server, jobs: str, member: MakeMember) -> None:
    configure(broker.address, jobs, share_delivery_count_limit="3")
    send(broker.address, jobs, ["poison", "fine"])
    one = member()
    for count in (1, 2, 3):
        assert one.acquire(most=1) == [(0, 0, count)]
        assert one.acknowledge((0, 0, [RELEASE])) == (0, 0)
    assert one.acquire() == [(1, 1, 1)]
    assert one.start_offset(jobs) == (1, 1)


def test_records_that_come_back_again_and_again_are_taken_apart(broker: Server, jobs: str, member: MakeMember) -> None:
    """One of them may be the cause, and must not take the others along."""
    configure(broker.address, jobs, share_delivery_count_limit="5")
    send(broker.address, jobs, map(str, range(16)))
    one = member()
    sizes = []
    for _ in range(5):
        (acquired,) = one.acquire(most=16)
        sizes.append(acquired[1] - acquired[0] + 1)
        assert one.acknowledge((acquired[0], acquired[1], [RELEASE])) == (0, 0)
    assert sizes == [16, 16, 8, 2, 1]


def test_acknowledgements_are_refused_as_kafka_does(broker: Server, jobs: str, member: MakeMember) -> None:
    send(broker.address, jobs, map(str, range(10)))
    one, two = member(), member()
    assert one.acquire(most=4) == [(0, 3, 1)]
    assert two.acquire(most=4) == [(4, 7, 1)]
    never, held = ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_RECORD_STATE
    for acks, code in [
        ([(8, 9, [ACCEPT])], never),
        ([(3, 2, [ACCEPT])], never),
        ([(2, 3, [ACCEPT]), (0, 1, [ACCEPT])], never),
        ([(0, 3, [ACCEPT, ACCEPT])], never),
        ([(0, 0, [9])], never),
        ([(0, 0, [RENEW])], never),
        ([(3, 4, [ACCEPT])], held),
        ([(0, 0, [ACCEPT]), (4, 4, [ACCEPT])], held),
    ]:
        assert one.acknowledge(*acks) == (0, code), acks
    assert one.acknowledge((0, 3, [ACCEPT, REJECT, RELEASE, ACCEPT])) == (0, 0), "nothing of the refused was taken"
    assert one.acknowledge((0, 1, [ACCEPT])) == (0, 0), "before the start offset all is over"
    assert one.acknowledge((3, 3, [ACCEPT])) == (0, held), "twice"
    assert two.acquire(most=1) == [(2, 2, 2)]


def test_acknowledgements_travel_with_a_fetch(broker: Server, jobs: str, member: MakeMember) -> None:
    send(broker.address, jobs, map(str, range(4)))
    one = member()
    assert one.acquire(most=2) == [(0, 1, 1)]
    answer = one.fetch((0, 0, [ACCEPT]), (1, 1, [RELEASE]), most=1)
    (partition,) = answer.responses[0].partitions
    assert partition.acknowledge_error_code == 0
    assert [(a.first_offset, a.delivery_count) for a in partition.acquired_records] == [(1, 2)]
    answer = one.fetch((0, 3, [ACCEPT]))
    (partition,) = answer.responses[0].partitions
    assert partition.acknowledge_error_code == ErrorCode.INVALID_REQUEST
    assert [(a.first_offset, a.last_offset) for a in partition.acquired_records] == [(2, 3)]


def test_a_lock_is_renewed(broker: Server, jobs: str, member: MakeMember) -> None:
    send(broker.address, jobs, ["a", "b"])
    one, two = member(), member()
    assert one.acquire() == [(0, 1, 1)]
    two.acquire()
    for _ in range(4):
        time.sleep(LOCK_S / 2)
        assert one.acknowledge((0, 0, [RENEW]), renew=True) == (0, 0)
    assert two.acquire() == [(1, 1, 2)], "the other record was not renewed"
    assert one.acknowledge((0, 0, [ACCEPT])) == (0, 0)
    no_fetch = {"max_bytes": 0, "min_bytes": 0, "is_renew_ack": True}
    assert two.fetch((1, 1, [RENEW]), most=1, **no_fetch).error_code == ErrorCode.INVALID_REQUEST
    answer = two.fetch((1, 1, [RENEW]), most=0, **no_fetch)
    assert (answer.error_code, answer.responses[0].partitions[0].acknowledge_error_code) == (0, 0)
    configure(broker.address, jobs, share_renew_acknowledge_enable="false")
    assert two.acknowledge((1, 1, [RENEW]), renew=True)[0] == ErrorCode.INVALID_REQUEST


def test_the_window_is_only_so_wide(broker: Server, jobs: str, member: MakeMember) -> None:
    configure(broker.address, jobs, share_partition_max_record_locks="100", share_record_lock_duration_ms="60000")
    send(broker.address, jobs, map(str, range(300)))
    one = member()
    assert one.acquire() == [(0, 99, 1)]
    assert one.acquire() == []
    assert one.acknowledge((1, 99, [ACCEPT])) == (0, 0)
    assert one.acquire() == [], "final records count while an earlier one is held"
    assert one.acknowledge((0, 0, [RELEASE])) == (0, 0)
    assert one.acquire(most=1) == [(0, 0, 2)], "inside the window"
    assert one.acknowledge((0, 0, [ACCEPT])) == (0, 0)
    assert one.acquire() == [(100, 199, 1)]


# Sessions


def test_sessions_and_their_epochs(broker: Server, jobs: str, member: MakeMember) -> None:
    one = member()
    assert one.fetch(epoch=1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert one.fetch(epoch=-1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert one.acknowledge(epoch=0)[0] == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert one.fetch((0, 0, [ACCEPT]), epoch=0).error_code == ErrorCode.INVALID_REQUEST
    opened = one.fetch()
    assert [p.partition_index for t in opened.responses for p in t.partitions] == [0], "a new partition is told"
    assert one.fetch().responses == [], "and then only if there is something to tell"
    assert one.fetch(epoch=1).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert one.fetch(epoch=7).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    send(broker.address, jobs, ["a"])
    assert one.acquire() == [(0, 0, 1)]
    one.epoch = 0
    assert one.acquire() == [], "a new session keeps what the member holds"
    assert one.acknowledge((0, 0, [ACCEPT])) == (0, 0)
    forgotten = [{"topic_id": one.topic, "partitions": [0]}]
    send(broker.address, jobs, ["b"])
    assert one.acquire(forgotten_topics_data=forgotten) == []
    nowhere = [{"topic_id": UUID(int=7), "partitions": [{"partition_index": 0}]}]
    answer = one.fetch(topics=nowhere)
    assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_the_last_request_of_a_session_gives_back_what_is_held(broker: Server, jobs: str, member: MakeMember) -> None:
    send(broker.address, jobs, map(str, range(4)))
    one, two = member(), member()
    assert one.acquire() == [(0, 3, 1)]
    answer = one.fetch((0, 0, [ACCEPT]), epoch=-1)
    assert answer.responses[0].partitions[0].acknowledge_error_code == 0
    assert two.acquire() == [(1, 3, 2)]
    assert two.acknowledge((1, 1, [ACCEPT]), epoch=-1) == (0, 0)
    assert one.acquire(most=1) == [(2, 2, 3)]


def test_a_closed_connection_gives_back_what_is_held(broker: Server, jobs: str, member: MakeMember) -> None:
    configure(broker.address, jobs, share_record_lock_duration_ms="60000")
    send(broker.address, jobs, ["a"])
    one, two = member(), member()
    assert one.acquire() == [(0, 0, 1)]
    two.acquire()
    one.close()
    assert two.acquire(wait_ms=10_000) == [(0, 0, 2)]


def test_there_are_only_so_many_sessions(broker: Server, jobs: str, member: MakeMember) -> None:
    one = member()
    members = [RawMember(broker.address, jobs) for _ in range(MOST_SESSIONS)]
    for other in members:
        other.topic = one.topic
    codes = [other.fetch(wait_ms=50).error_code for other in members]
    assert one.fetch().error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED or any(codes)
    for other in members:
        other.close()
    one.epoch = 0
    wait_for(lambda: one.fetch(epoch=0).error_code == 0)


# What is read


def test_transactions_are_read_as_the_group_wants_them(broker: Server, jobs: str, member: MakeMember) -> None:
    producer = Producer(
        {"bootstrap.servers": broker.address, "transactional.id": f"{jobs}-writer", "log_level": 0, "linger.ms": 0}
    )
    producer.init_transactions(LIMIT)
    for value, commit in [("one", True), ("two", False), ("three", True)]:
        producer.begin_transaction()
        producer.produce(jobs, value.encode())
        assert producer.flush(LIMIT) == 0
        (producer.commit_transaction if commit else producer.abort_transaction)(LIMIT)
    # 0 and its marker, 2 and its marker (aborted), 4 and its marker
    dirty = member()
    assert dirty.acquire() == [(0, 0, 1), (2, 2, 1), (4, 4, 1)]
    assert dirty.acknowledge((0, 0, [RELEASE]), (2, 2, [RELEASE]), (4, 4, [RELEASE])) == (0, 0)
    configure(broker.address, jobs, share_isolation_level="read_committed")
    assert dirty.acquire() == [(0, 0, 2), (4, 4, 2)]
    producer.begin_transaction()
    producer.produce(jobs, b"open")
    assert producer.flush(LIMIT) == 0
    assert dirty.acknowledge((0, 0, [ACCEPT]), (4, 4, [ACCEPT])) == (0, 0)
    assert dirty.acquire() == [], "its transaction is open"
    producer.commit_transaction(LIMIT)
    assert dirty.acquire(wait_ms=5_000) == [(6, 6, 1)]
    assert dirty.acknowledge((6, 6, [ACCEPT])) == (0, 0)
    assert dirty.start_offset(jobs)[1] <= 1, "at most the last marker is left"


@pytest.mark.parametrize(
    ("reset", "first"), [("earliest", 0), ("latest", 2), ("by_duration:PT1H", 0), ("by_duration:PT0S", 2)]
)
def test_where_a_group_begins(broker: Server, topic: str, reset: str, first: int) -> None:
    make_topic(broker.address, topic)
    configure(broker.address, topic, share_auto_offset_reset=reset)
    send(broker.address, topic, ["a", "b"])
    time.sleep(0.01)
    one = RawMember(broker.address, topic).join(topic)
    assert one.start_offset(topic)[0] == first
    one.close()


def test_members_that_join_together_begin_at_one_place(broker: Server, topic: str) -> None:
    """The second takes partitions from the first before these have a start: they are not new to the group."""
    make_topic(broker.address, topic, partitions=4)
    configure(broker.address, topic, share_auto_offset_reset="latest")
    for partition in range(4):
        send(broker.address, topic, ["a", "b"], partition=partition)
    members = [RawMember(broker.address, topic) for _ in range(3)]
    with ThreadPoolExecutor(len(members)) as pool:
        list(pool.map(lambda one: one.join(topic), members))
    for partition in range(4):
        assert members[0].start_offset(topic, partition)[0] == 2
    for one in members:
        one.close()


def test_deleted_records_are_over(broker: Server, jobs: str, member: MakeMember) -> None:
    send(broker.address, jobs, map(str, range(6)))
    one = member()
    assert one.acquire(most=4) == [(0, 3, 1)]
    answer = one.call(
        "delete_records",
        2,
        {"topics": [{"name": jobs, "partitions": [{"partition_index": 0, "offset": 2}]}], "timeout": 5000},
    )
    assert answer.topics[0].partitions[0].error_code == 0
    assert one.acknowledge((0, 3, [ACCEPT])) == (0, 0)
    assert one.acquire() == [(4, 5, 1)]
    assert one.start_offset(jobs)[0] == 4


def test_a_deleted_topic_takes_its_state_along(broker: Server, jobs: str, member: MakeMember) -> None:
    send(broker.address, jobs, ["a"])
    one = member()
    assert one.acquire() == [(0, 0, 1)]
    one.call("delete_topics", 6, {"topics": [{"name": jobs, "topic_id": UUID(int=0)}], "timeout": 5000})
    assert one.acknowledge((0, 0, [ACCEPT])) == (0, ErrorCode.UNKNOWN_TOPIC_ID)
    make_topic(broker.address, jobs)
    changed = one.heartbeat()
    assert len(changed.assignment.topic_partitions) == 1
    assert one.start_offset(jobs) == (0, 0)


# Offsets


def test_offsets_are_described_moved_and_deleted(broker: Server, jobs: str, member: MakeMember) -> None:
    send(broker.address, jobs, map(str, range(5)))
    one = member()
    assert one.acquire(most=2) == [(0, 1, 1)]
    assert one.acknowledge((1, 1, [ACCEPT])) == (0, 0)
    assert one.start_offset(jobs) == (0, 4), "one of five is done"
    move = {
        "group_id": jobs,
        "topics": [
            {
                "topic_name": jobs,
                "partitions": [{"partition_index": 0, "start_offset": 3}, {"partition_index": 7, "start_offset": 0}],
            }
        ],
    }
    forget = {"group_id": jobs, "topics": [{"topic_name": jobs}, {"topic_name": "missing"}]}
    assert one.call("alter_share_group_offsets", 0, move).error_code == ErrorCode.NON_EMPTY_GROUP
    assert one.call("delete_share_group_offsets", 0, forget).error_code == ErrorCode.NON_EMPTY_GROUP
    one.heartbeat(epoch=-1)
    answer = one.call("alter_share_group_offsets", 0, move)
    codes = {p.partition_index: p.error_code for p in answer.responses[0].partitions}
    assert codes == {0: 0, 7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert one.start_offset(jobs) == (3, 2)
    assert one.acknowledge((0, 0, [ACCEPT])) == (0, 0), "before the start"
    assert one.acknowledge((3, 3, [ACCEPT]))[1] == ErrorCode.INVALID_REQUEST, "held by nobody in this life"
    answer = one.call("delete_share_group_offsets", 0, forget)
    assert [t.error_code for t in answer.responses] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert one.start_offset(jobs) == (-1, -1)
    again = one.call("delete_share_group_offsets", 0, forget)
    assert {t.error_code for t in again.responses} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    one.group = f"{jobs}-new"
    assert one.start_offset(jobs) == (-1, -1), "of a group that is not there, nothing is known"
    assert one.call("delete_share_group_offsets", 0, forget | {"group_id": one.group}).error_code == (
        ErrorCode.GROUP_ID_NOT_FOUND
    )
    assert one.call("alter_share_group_offsets", 0, move | {"group_id": one.group}).error_code == 0
    assert one.start_offset(jobs) == (3, 2), "a group can be given its start before it has members"
    assert (one.group, "Empty") in {(g.group_id, g.group_state) for g in listed(one)}


def test_a_group_is_described(broker: Server, jobs: str, member: MakeMember) -> None:
    one = member()
    answer = one.call("share_group_describe", 1, {"group_ids": [jobs, "nobody"]})
    found, missing = answer.groups
    assert (found.group_state, found.assignor_name, found.group_epoch) == ("Stable", "simple", one.member_epoch)
    (described,) = found.members
    assert (described.member_id, described.subscribed_topic_names) == (one.member_id, [jobs])
    assert [(t.topic_name, t.partitions) for t in described.assignment.topic_partitions] == [(jobs, [0])]
    assert (missing.error_code, missing.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "")


# Restarts


def test_what_was_acknowledged_is_kept_over_a_kill(tmp_path: Path) -> None:
    with broker_for_tests(tmp_path, SETTINGS) as broker:
        make_topic(broker.address, "t")
        configure(broker.address, "t", share_auto_offset_reset="earliest")
        send(broker.address, "t", map(str, range(6)))
        one = RawMember(broker.address, "t").join("t")
        assert one.acquire() == [(0, 5, 1)]
        assert one.acknowledge((0, 5, [ACCEPT, RELEASE, ACCEPT, REJECT, RELEASE, ACCEPT])) == (0, 0)
        assert one.acquire(most=1) == [(1, 1, 2)]
        broker.kill()
        broker.start()
        again = RawMember(broker.address, "t", one.member_id)
        again.topic, again.member_epoch = one.topic, one.member_epoch
        assert again.heartbeat().error_code == 0, "it is still a member"
        assert again.start_offset("t") == (1, 2)
        assert again.acquire() == [(1, 1, 2), (4, 4, 2)], "an acquisition at a crash is not counted"
        again.close()


# Both kinds of group


def test_groups_of_both_kinds_have_one_life_cycle(broker: Server, jobs: str, member: MakeMember) -> None:
    one = member()
    kinds = {g.group_id: (g.group_type, g.group_state, g.protocol_type) for g in listed(one)}
    assert kinds[jobs] == ("share", "Stable", "share")
    assert jobs not in {g.group_id for g in listed(one, types_filter=["classic"])}
    assert jobs in {g.group_id for g in listed(one, types_filter=["Share"], states_filter=["stable"])}
    join = {
        "group_id": jobs,
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    assert one.call("join_group", 9, join).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    (described,) = one.call("describe_groups", 6, {"groups": [jobs]}).groups
    assert (described.error_code, described.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
    commit = {
        "group_id": jobs,
        "generation_id_or_member_epoch": -1,
        "topics": [{"name": jobs, "partitions": [{"partition_index": 0, "committed_offset": 0}]}],
    }
    answer = one.call("offset_commit", 9, commit)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert (
        one.call("offset_commit", 9, commit | {"group_id": f"{jobs}-classic"}).topics[0].partitions[0].error_code == 0
    )
    other = RawMember(broker.address, f"{jobs}-classic")
    assert other.heartbeat(jobs).error_code == ErrorCode.GROUP_ID_NOT_FOUND, "that name is of a classic group"
    other.close()


def listed(member: RawMember, **filters: list[str]) -> list[SimpleNamespace]:
    found: list[SimpleNamespace] = member.call(
        "list_groups", 5, {"states_filter": [], "types_filter": [], **filters}
    ).groups
    return found


def test_a_group_is_deleted_with_all_that_is_known_of_it(broker: Server, jobs: str, member: MakeMember) -> None:
    send(broker.address, jobs, ["a", "b"])
    one = member()
    assert one.acquire(most=1) == [(0, 0, 1)]
    assert one.acknowledge((0, 0, [ACCEPT])) == (0, 0)

    def delete() -> int:
        code: int = one.call("delete_groups", 2, {"groups_names": [jobs]}).results[0].error_code
        return code

    assert delete() == ErrorCode.NON_EMPTY_GROUP
    one.heartbeat(epoch=-1)
    assert delete() == 0
    assert jobs not in {g.group_id for g in listed(one)}
    assert one.fetch().error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert delete() == ErrorCode.GROUP_ID_NOT_FOUND
    one.member_epoch = one.epoch = 0
    one.join(jobs)
    assert one.acquire() == [(0, 1, 1)], "it begins anew"
