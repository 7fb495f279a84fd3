"""The transaction coordinator: each request in each state, fencing, and stragglers."""

import asyncio
from dataclasses import replace

import pytest

from headrace.broker.errors import ErrorCode
from headrace.broker.groups.offsets import OffsetEntry
from headrace.broker.transactions.producer_ids import BLOCK
from headrace.broker.transactions.state import FENCING_EPOCH, LAST_EPOCH, Producer, State, Transaction
from tests.broker.transactions_harness import MINUTE, TP0, TP1, House, housed, opened, refused, state_of


def set_epoch(house: House, name: str, epoch: int) -> Producer:
    """As if the id had been initialised that often."""
    entry = house.coordinator._entries[name]
    entry.current = replace(entry.current, producer=Producer(entry.current.producer.id, epoch))
    return entry.current.producer


# -- InitProducerId --------------------------------------------------------------------------------------------


@housed()
async def test_ids_without_transactions_are_all_different(house: House) -> None:
    ids = [await house.coordinator.init_producer_id(None, 0) for _ in range(3)]
    assert [producer.epoch for producer in ids] == [0, 0, 0]
    assert len({producer.id for producer in ids}) == 3


@housed()
async def test_a_producer_id_is_never_given_out_twice(house: House) -> None:
    seen: set[int] = set()
    for crash in (False, True, False, True):
        given = [(await house.coordinator.init_producer_id(None, 0)).id for _ in range(BLOCK + 1)]
        assert len(set(given)) == len(given)
        assert seen.isdisjoint(given)
        seen.update(given)
        if crash:
            await house.kill()
        else:
            house.stop()
        await house.start()


@housed()
async def test_each_initialisation_fences_the_one_before(house: House) -> None:
    first = await house.coordinator.init_producer_id("x", MINUTE)
    second = await house.coordinator.init_producer_id("x", MINUTE)
    assert second == Producer(first.id, first.epoch + 1)
    house.make_topic("t")
    with refused(ErrorCode.PRODUCER_FENCED):
        await house.coordinator.add_partitions("x", first, [TP0])
    await house.coordinator.add_partitions("x", second, [TP0])


@housed()
async def test_initialising_aborts_the_open_transaction_of_the_predecessor(house: House) -> None:
    first = await opened(house)
    second = await house.coordinator.init_producer_id("x", MINUTE)
    assert second.epoch == first.epoch + 2
    partition = house.topics.partitions[TP0]
    assert partition.read() == {"v": "aborted"}
    assert partition.markers[0].producer.epoch == first.epoch + 1
    assert state_of(house) is State.EMPTY
    with refused(ErrorCode.PRODUCER_FENCED):
        await house.coordinator.end("x", first, True)
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        house.coordinator.check_produce("x", *first, *TP0)


@housed()
async def test_a_producer_may_ask_for_its_next_epoch_and_ask_again(house: House) -> None:
    first = await house.coordinator.init_producer_id("x", MINUTE)
    second = await house.coordinator.init_producer_id("x", MINUTE, first)
    assert second == Producer(first.id, first.epoch + 1)
    assert await house.coordinator.init_producer_id("x", MINUTE, first) == second
    await house.restart()
    assert await house.coordinator.init_producer_id("x", MINUTE, first) == second
    third = await house.coordinator.init_producer_id("x", MINUTE, second)
    assert third.epoch == second.epoch + 1
    with refused(ErrorCode.PRODUCER_FENCED):
        await house.coordinator.init_producer_id("x", MINUTE, first)


@housed()
async def test_a_new_producer_takes_the_right_to_ask_again(house: House) -> None:
    first = await house.coordinator.init_producer_id("x", MINUTE)
    second = await house.coordinator.init_producer_id("x", MINUTE)
    for stranger in (first, Producer(second.id + 77, second.epoch), Producer(second.id, second.epoch + 1)):
        with refused(ErrorCode.PRODUCER_FENCED):
            await house.coordinator.init_producer_id("x", MINUTE, stranger)


@housed()
async def test_a_producer_with_an_open_transaction_may_start_over(house: House) -> None:
    first = await opened(house)
    second = await house.coordinator.init_producer_id("x", MINUTE, first)
    assert second.epoch > first.epoch
    assert house.topics.partitions[TP0].read() == {"v": "aborted"}
    assert await house.coordinator.init_producer_id("x", MINUTE, first) == second


@housed()
async def test_a_straggler_does_not_abort_the_transaction_of_its_successor(house: House) -> None:
    first = await house.coordinator.init_producer_id("x", MINUTE)
    second = await house.coordinator.init_producer_id("x", MINUTE, first)
    house.make_topic("t")
    await house.coordinator.add_partitions("x", second, [TP0])
    with refused(ErrorCode.PRODUCER_FENCED):
        await house.coordinator.init_producer_id("x", MINUTE, first)
    assert state_of(house) is State.ONGOING


@housed()
async def test_a_forgotten_id_with_an_old_identity_begins_anew(house: House) -> None:
    producer = await house.coordinator.init_producer_id("x", MINUTE, Producer(123, 4))
    assert producer.epoch == 0


@housed()
async def test_after_the_last_epoch_comes_a_new_producer_id(house: House) -> None:
    first = await house.coordinator.init_producer_id("x", MINUTE)
    last = set_epoch(house, "x", LAST_EPOCH)
    fresh = await house.coordinator.init_producer_id("x", MINUTE)
    assert fresh.id != first.id
    assert fresh.epoch == 0
    with refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING):
        await house.coordinator.end("x", last, True)
    with refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING):
        house.coordinator.check_produce("x", *last, *TP0)


@housed()
async def test_the_last_bump_and_the_new_id_can_be_asked_for_again(house: House) -> None:
    await house.coordinator.init_producer_id("x", MINUTE)
    before = set_epoch(house, "x", LAST_EPOCH - 1)
    last = await house.coordinator.init_producer_id("x", MINUTE, before)
    assert last.epoch == LAST_EPOCH
    assert await house.coordinator.init_producer_id("x", MINUTE, before) == last
    fresh = await house.coordinator.init_producer_id("x", MINUTE, last)
    assert fresh.epoch == 0
    assert await house.coordinator.init_producer_id("x", MINUTE, last) == fresh


@pytest.mark.parametrize("says_who", [True, False])
def test_the_last_epoch_can_still_be_fenced(says_who: bool) -> None:
    @housed()
    async def inside(house: House) -> None:
        await opened(house)
        last = set_epoch(house, "x", LAST_EPOCH)
        house.topics.partitions[TP0].produce(last, "w")
        fresh = await house.coordinator.init_producer_id("x", MINUTE, last if says_who else None)
        assert fresh.id != last.id
        assert fresh.epoch == 0
        assert house.topics.partitions[TP0].markers[0].producer == Producer(last.id, FENCING_EPOCH)
        if says_who:
            assert await house.coordinator.init_producer_id("x", MINUTE, last) == fresh

    inside()


@housed(transaction_max_timeout_ms="5000")
async def test_timeouts_are_bounded(house: House) -> None:
    for timeout in (0, -1, 5001):
        with refused(ErrorCode.INVALID_TRANSACTION_TIMEOUT):
            await house.coordinator.init_producer_id("x", timeout)
    await house.coordinator.init_producer_id("x", 5000)
    await house.coordinator.init_producer_id(None, 999_999)


@housed()
async def test_an_empty_transactional_id_is_refused(house: House) -> None:
    nobody = Producer(0, 0)
    with refused(ErrorCode.INVALID_REQUEST):
        await house.coordinator.init_producer_id("", MINUTE)
    with refused(ErrorCode.INVALID_REQUEST):
        await house.coordinator.add_partitions("", nobody, [])
    with refused(ErrorCode.INVALID_REQUEST):
        await house.coordinator.add_offsets("", nobody, "g")
    with refused(ErrorCode.INVALID_REQUEST):
        await house.coordinator.end("", nobody, True)


@housed()
async def test_requests_for_an_unknown_id_are_refused_and_leave_nothing(house: House) -> None:
    house.make_topic("t")
    for producer in (Producer(0, 0), Producer(-1, -1)):
        with refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING):
            await house.coordinator.add_partitions("x", producer, [TP0])
        with refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING):
            await house.coordinator.add_offsets("x", producer, "g")
        with refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING):
            await house.coordinator.end("x", producer, False)
        with refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING):
            await house.coordinator.commit_offsets("x", producer, "g", "", -1, None, [])
    assert house.coordinator.all() == []


# -- a transaction ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_ends_on_all_its_partitions(commit: bool) -> None:
    @housed()
    async def inside(house: House) -> None:
        producer = await opened(house)
        await house.coordinator.add_partitions("x", producer, [TP0, TP1])
        house.topics.partitions[TP1].produce(producer, "w")
        await house.coordinator.end("x", producer, commit)
        outcome = "committed" if commit else "aborted"
        assert house.topics.partitions[TP0].read() == {"v": outcome}
        assert house.topics.partitions[TP1].read() == {"w": outcome}
        assert state_of(house) is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)
        transaction = house.coordinator.get("x")
        assert transaction is not None
        assert not transaction.partitions
        await house.restart()
        assert house.coordinator.get("x") == transaction

    inside()


@pytest.mark.parametrize("commit", [True, False])
def test_ending_again_is_answered_and_the_opposite_refused(commit: bool) -> None:
    @housed()
    async def inside(house: House) -> None:
        producer = await opened(house)
        await house.coordinator.end("x", producer, commit)
        await house.coordinator.end("x", producer, commit)
        with refused(ErrorCode.INVALID_TXN_STATE):
            await house.coordinator.end("x", producer, not commit)
        assert len(house.topics.partitions[TP0].markers) == 1

    inside()


@housed()
async def test_nothing_to_end(house: House) -> None:
    producer = await house.coordinator.init_producer_id("x", MINUTE)
    for commit in (True, False):
        with refused(ErrorCode.INVALID_TXN_STATE):
            await house.coordinator.end("x", producer, commit)


@housed()
async def test_a_transaction_of_offsets_alone(house: House) -> None:
    house.make_topic("t")
    producer = await house.coordinator.init_producer_id("x", MINUTE)
    await house.coordinator.add_offsets("x", producer, "g")
    await house.coordinator.add_offsets("x", producer, "g")
    await house.coordinator.commit_offsets("x", producer, "g", "", -1, None, [OffsetEntry("t", 0, 5)])
    assert house.offsets.pending("g", "t", 0)
    assert house.offsets.fetch("g", "t", 0) is None
    await house.coordinator.end("x", producer, True)
    await house.restart()
    assert not house.offsets.pending("g", "t", 0)
    found = house.offsets.fetch("g", "t", 0)
    assert found is not None
    assert found.offset == 5
    transaction = house.coordinator.get("x")
    assert transaction is not None
    assert not transaction.groups


@housed()
async def test_offsets_of_an_aborted_transaction_are_forgotten(house: House) -> None:
    producer = await opened(house)
    await house.coordinator.add_offsets("x", producer, "g")
    await house.coordinator.commit_offsets("x", producer, "g", "", -1, None, [OffsetEntry("t", 0, 5)])
    await house.coordinator.end("x", producer, False)
    assert not house.offsets.pending("g", "t", 0)
    assert house.offsets.fetch("g", "t", 0) is None


@housed()
async def test_offsets_need_an_open_transaction_with_their_group(house: House) -> None:
    producer = await opened(house)
    entries = [OffsetEntry("t", 0, 5)]
    with refused(ErrorCode.INVALID_TXN_STATE):
        await house.coordinator.commit_offsets("x", producer, "g", "", -1, None, entries)
    await house.coordinator.add_offsets("x", producer, "g")
    with refused(ErrorCode.PRODUCER_FENCED):
        await house.coordinator.commit_offsets("x", Producer(producer.id, 9), "g", "", -1, None, entries)
    with refused(ErrorCode.ILLEGAL_GENERATION):
        await house.coordinator.commit_offsets("x", producer, "g", "member", 3, None, entries)
    await house.coordinator.commit_offsets("x", producer, "g", "", -1, None, entries)
    await house.coordinator.end("x", producer, True)
    with refused(ErrorCode.INVALID_TXN_STATE):
        await house.coordinator.commit_offsets("x", producer, "g", "", -1, None, entries)


@housed()
async def test_unknown_partitions_open_nothing(house: House) -> None:
    producer = await house.coordinator.init_producer_id("x", MINUTE)
    with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        await house.coordinator.add_partitions("x", producer, [("absent", 0)])
    assert state_of(house) is State.EMPTY


@housed()
async def test_adding_what_is_there_writes_nothing(house: House) -> None:
    producer = await opened(house)
    before = house.coordinator.get("x")
    await house.coordinator.add_partitions("x", producer, [TP0])
    assert house.coordinator.get("x") is before


@housed()
async def test_another_transaction_follows(house: House) -> None:
    producer = await opened(house)
    await house.coordinator.end("x", producer, True)
    await house.coordinator.add_partitions("x", producer, [TP0])
    house.topics.partitions[TP0].produce(producer, "w")
    await house.coordinator.end("x", producer, False)
    assert house.topics.partitions[TP0].read() == {"v": "committed", "w": "aborted"}


@housed()
async def test_requests_of_one_id_wait_for_each_other(house: House) -> None:
    producer = await opened(house)
    answers = await asyncio.gather(
        house.coordinator.end("x", producer, True),
        house.coordinator.end("x", producer, True),
        house.coordinator.add_partitions("x", producer, [TP1]),
        house.coordinator.init_producer_id("x", MINUTE),
        house.coordinator.init_producer_id("x", MINUTE),
        house.coordinator.end("x", producer, True),
        return_exceptions=True,
    )
    assert answers[:3] == [None, None, None]
    assert answers[3:5] == [Producer(producer.id, 2), Producer(producer.id, 3)]
    assert getattr(answers[5], "code", None) is ErrorCode.PRODUCER_FENCED
    assert house.topics.partitions[TP0].read() == {"v": "committed"}


@housed()
async def test_a_client_that_goes_away_does_not_stop_its_request(house: House) -> None:
    producer = await opened(house)
    request = asyncio.create_task(house.coordinator.end("x", producer, True))
    await asyncio.sleep(0)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    await house.coordinator.settle()
    assert state_of(house) is State.COMPLETE_COMMIT


# -- produce ---------------------------------------------------------------------------------------------------


@housed()
async def test_only_added_partitions_of_an_open_transaction_are_written(house: House) -> None:
    check = house.coordinator.check_produce
    producer = await opened(house)
    check("x", *producer, *TP0)
    with refused(ErrorCode.INVALID_TXN_STATE):
        check("x", *producer, *TP1)
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        check("x", producer.id, producer.epoch + 1, *TP0)
    with refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING):
        check("y", *producer, *TP0)
    with refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED):
        check(None, *producer, *TP0)
    with refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING):
        check("x", producer.id + 1, producer.epoch, *TP0)
    await house.coordinator.end("x", producer, True)
    with refused(ErrorCode.INVALID_TXN_STATE):
        check("x", *producer, *TP0)


@pytest.mark.parametrize("fence", [True, False])
def test_nothing_is_written_once_the_end_has_begun(fence: bool) -> None:
    @housed()
    async def inside(house: House) -> None:
        producer = await opened(house)
        house.fate.dies_in(0, after=False)
        if fence:
            request = asyncio.create_task(house.coordinator.init_producer_id("x", MINUTE))
        else:
            request = asyncio.create_task(house.coordinator.end("x", producer, True))
        assert not await house.survives(request)
        with refused(ErrorCode.INVALID_PRODUCER_EPOCH if fence else ErrorCode.INVALID_TXN_STATE):
            house.coordinator.check_produce("x", *producer, *TP0)
        request.cancel()

    inside()


# -- stragglers ------------------------------------------------------------------------------------------------


@housed()
async def test_a_late_end_does_not_end_a_later_transaction(house: House) -> None:
    """KAFKA-17754: the first EndTxn was given up, tried again on a new connection, and arrives after all."""
    house.make_topic("t", 2)
    producer = await house.coordinator.init_producer_id("x", MINUTE)
    old, new = 7, 8
    await house.coordinator.add_partitions("x", producer, [TP0], old)
    await house.coordinator.end("x", producer, True, new)
    await house.coordinator.add_partitions("x", producer, [TP0], new)
    for request in (
        house.coordinator.end("x", producer, True, old),
        house.coordinator.add_partitions("x", producer, [TP1], old),
        house.coordinator.add_offsets("x", producer, "g", old),
    ):
        with refused(ErrorCode.INVALID_TXN_STATE):
            await request
    assert state_of(house) is State.ONGOING
    await house.coordinator.end("x", producer, False, new)
    assert state_of(house) is State.COMPLETE_ABORT


@housed()
async def test_a_new_incarnation_may_come_on_any_connection(house: House) -> None:
    house.make_topic("t")
    first = await house.coordinator.init_producer_id("x", MINUTE)
    await house.coordinator.add_partitions("x", first, [TP0], 9)
    second = await house.coordinator.init_producer_id("x", MINUTE)
    await house.coordinator.add_partitions("x", second, [TP0], 3)
    await house.coordinator.end("x", second, True, 3)


def test_fencing_and_ending_keep_what_is_not_theirs() -> None:
    start = Transaction("x").initialised(None, 5, MINUTE, 1)
    opened = start.with_group("g", 2).with_group("h", 3)
    assert (opened.started_ms, opened.updated_ms) == (2, 3)
    fenced = opened.fenced(None, 4)
    assert fenced.producer == Producer(5, 1)
    assert fenced.groups == {"g", "h"}
    completed = fenced.completed(5)
    assert completed == replace(fenced, state=State.COMPLETE_ABORT, updated_ms=5, groups=frozenset())
