"""The transaction coordinator when time runs out, and when the store, a partition or a topic fails it."""

import asyncio

import pytest

from headrace.broker.errors import ErrorCode
from headrace.broker.groups.offsets import OffsetEntry
from headrace.broker.transactions.state import Producer, State
from tests.broker.transactions_harness import MINUTE, TP0, TP1, House, housed, opened, refused, state_of, until

# -- time ------------------------------------------------------------------------------------------------------


@housed()
async def test_a_transaction_past_its_timeout_is_aborted_and_its_producer_fenced(house: House) -> None:
    producer = await opened(house)
    house.clock.advance(59)
    await house.coordinator.abort_timed_out()
    assert state_of(house) is State.ONGOING
    house.clock.advance(2)
    await house.coordinator.abort_timed_out()
    assert state_of(house) is State.COMPLETE_ABORT
    assert house.topics.partitions[TP0].read() == {"v": "aborted"}
    for request in (
        house.coordinator.end("x", producer, True),
        house.coordinator.add_partitions("x", producer, [TP0]),
        house.coordinator.init_producer_id("x", MINUTE, producer),
    ):
        with refused(ErrorCode.PRODUCER_FENCED):
            await request
    fresh = await house.coordinator.init_producer_id("x", MINUTE)
    assert fresh == Producer(producer.id, producer.epoch + 2)


@housed()
async def test_a_transaction_that_ends_in_time_is_not_aborted_after_all(house: House) -> None:
    producer = await opened(house)
    house.clock.advance(61)
    await asyncio.gather(house.coordinator.end("x", producer, True), house.coordinator.abort_timed_out())
    assert state_of(house) is State.COMPLETE_COMMIT
    assert len(house.topics.partitions[TP0].markers) == 1


@housed()
async def test_time_counts_from_the_first_partition_of_each_transaction(house: House) -> None:
    producer = await opened(house)
    house.clock.advance(40)
    await house.coordinator.end("x", producer, True)
    await house.coordinator.add_partitions("x", producer, [TP0])
    house.clock.advance(40)
    await house.coordinator.add_partitions("x", producer, [TP1])
    await house.coordinator.abort_timed_out()
    assert state_of(house) is State.ONGOING
    house.clock.advance(21)
    await house.coordinator.abort_timed_out()
    assert state_of(house) is State.COMPLETE_ABORT


@pytest.mark.parametrize("crash", [True, False])
def test_open_transactions_stay_open_over_a_restart_and_their_time_begins_anew(crash: bool) -> None:
    @housed()
    async def inside(house: House) -> None:
        producer = await opened(house)
        await house.coordinator.add_offsets("x", producer, "g")
        await house.coordinator.commit_offsets("x", producer, "g", "", -1, None, [OffsetEntry("t", 0, 5)])
        house.topics.partitions[TP0].durable = 1
        before = house.coordinator.get("x")
        house.clock.advance(59)
        if crash:
            await house.kill()
        else:
            house.stop()
        await house.start()
        assert house.coordinator.get("x") == before
        house.clock.advance(59)
        await house.coordinator.abort_timed_out()
        house.coordinator.check_produce("x", *producer, *TP0)
        await house.coordinator.end("x", producer, True)
        assert house.topics.partitions[TP0].read() == {"v": "committed"}
        found = house.offsets.fetch("g", "t", 0)
        assert found is not None
        assert found.offset == 5

    inside()


@housed(transaction_abort_timed_out_transaction_cleanup_interval_ms="20")
async def test_timeouts_are_looked_for_by_themselves(house: House) -> None:
    await opened(house)
    house.clock.advance(61)
    await until(lambda: state_of(house) is State.COMPLETE_ABORT)


@housed(transactional_id_expiration_ms="1000", transaction_remove_expired_transaction_cleanup_interval_ms="20")
async def test_idle_ids_are_forgotten_by_themselves(house: House) -> None:
    await house.coordinator.init_producer_id("x", MINUTE)
    house.clock.advance(2)
    await until(lambda: house.coordinator.all() == [])


@housed(transactional_id_expiration_ms="10000")
async def test_only_idle_ids_are_forgotten_and_for_good(house: House) -> None:
    done = await opened(house, "done", "a")
    await house.coordinator.end("done", done, True)
    await opened(house, "open", "b")
    house.clock.advance(9)
    await house.coordinator.expire_ids()
    await house.coordinator.init_producer_id("fresh", MINUTE)
    assert len(house.coordinator.all()) == 3
    house.clock.advance(2)
    await house.coordinator.expire_ids()
    assert {each.transactional_id for each in house.coordinator.all()} == {"open", "fresh"}
    with refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING):
        house.coordinator.check_produce("done", *done, *TP0)
    await house.restart()
    assert {each.transactional_id for each in house.coordinator.all()} == {"open", "fresh"}
    again = await house.coordinator.init_producer_id("done", MINUTE)
    assert again.id != done.id


@housed(transactional_id_expiration_ms="10000")
async def test_an_id_that_is_used_again_in_time_is_not_forgotten_after_all(house: House) -> None:
    first = await house.coordinator.init_producer_id("x", MINUTE)
    house.clock.advance(11)
    again, _ = await asyncio.gather(house.coordinator.init_producer_id("x", MINUTE), house.coordinator.expire_ids())
    assert again.id == first.id
    assert house.coordinator.get("x") is not None


@housed(transactional_id_expiration_ms="10000")
async def test_requests_that_wait_while_an_id_is_forgotten_do_not_bring_it_back(house: House) -> None:
    house.make_topic("t")
    first = await house.coordinator.init_producer_id("x", MINUTE)
    house.clock.advance(11)
    expiring = asyncio.create_task(house.coordinator.expire_ids())
    while not house.coordinator._entries["x"].lock.locked():
        await asyncio.sleep(0)
    added, again, _ = await asyncio.gather(
        house.coordinator.add_partitions("x", first, [TP0]),
        house.coordinator.init_producer_id("x", MINUTE),
        expiring,
        return_exceptions=True,
    )
    assert getattr(added, "code", None) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert isinstance(again, Producer)
    assert again.id != first.id


@housed(transactional_id_expiration_ms="10000")
async def test_a_wall_clock_set_back_between_runs_keeps_no_id_longer(house: House) -> None:
    house.clock.advance(1_000_000)
    await house.coordinator.init_producer_id("x", MINUTE)
    house.stop()
    house.clock.advance(-1_000_000)
    await house.start()
    house.clock.advance(11)
    await house.coordinator.expire_ids()
    assert house.coordinator.all() == []


# -- what fails underneath -------------------------------------------------------------------------------------


@housed()
async def test_a_full_store_changes_nothing(house: House) -> None:
    producer = await opened(house)
    await house.coordinator.add_offsets("x", producer, "g")
    before = house.coordinator.get("x")
    house.coordinator._producer_ids._next = house.coordinator._producer_ids._end
    house.store.full = True
    for request in (
        house.coordinator.init_producer_id("new", MINUTE),
        house.coordinator.init_producer_id(None, MINUTE),
        house.coordinator.init_producer_id("x", MINUTE),
        house.coordinator.add_partitions("x", producer, [TP1]),
        house.coordinator.add_offsets("x", producer, "h"),
        house.coordinator.commit_offsets("x", producer, "g", "", -1, None, [OffsetEntry("t", 0, 5)]),
        house.coordinator.end("x", producer, True),
    ):
        with refused(ErrorCode.COORDINATOR_NOT_AVAILABLE):
            await request
    house.clock.advance(100)
    await house.coordinator.abort_timed_out()
    assert house.coordinator.all() == [before]
    assert list(house.coordinator._entries) == ["x"]
    assert house.topics.partitions[TP0].read() == {"v": "open"}
    house.coordinator.check_produce("x", *producer, *TP0)
    house.store.full = False
    await house.coordinator.end("x", producer, True)
    assert house.topics.partitions[TP0].read() == {"v": "committed"}


@housed()
async def test_a_store_that_fills_up_after_the_decision_is_waited_for(house: House) -> None:
    producer = await opened(house)
    write = house.store.write
    written = 0

    def fill_up(change: object) -> object:
        nonlocal written
        written += 1
        house.store.full = written > 1
        return write(change)  # type: ignore[arg-type]

    house.store.write = fill_up  # type: ignore[method-assign, assignment]
    with refused(ErrorCode.COORDINATOR_NOT_AVAILABLE):
        await house.coordinator.end("x", producer, True)
    assert state_of(house) is State.PREPARE_COMMIT
    with refused(ErrorCode.INVALID_TXN_STATE):
        await house.coordinator.end("x", producer, False)
    house.store.write = write  # type: ignore[method-assign]
    house.store.full = False
    await until(lambda: state_of(house) is State.COMPLETE_COMMIT)
    assert len(house.topics.partitions[TP0].markers) == 1


@housed()
async def test_a_partition_that_takes_no_marker_is_tried_until_it_does(house: House) -> None:
    producer = await opened(house)
    await house.coordinator.add_partitions("x", producer, [TP1])
    house.topics.partitions[TP1].failing = ErrorCode.KAFKA_STORAGE_ERROR
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        await house.coordinator.end("x", producer, False)
    assert state_of(house) is State.PREPARE_ABORT
    for request in (
        house.coordinator.end("x", producer, False),
        house.coordinator.add_partitions("x", producer, [TP0]),
        house.coordinator.init_producer_id("x", MINUTE),
    ):
        with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
            await request
    with refused(ErrorCode.INVALID_TXN_STATE):
        house.coordinator.check_produce("x", *producer, *TP0)
    house.topics.partitions[TP1].failing = None
    await until(lambda: state_of(house) is State.COMPLETE_ABORT)
    assert len(house.topics.partitions[TP0].markers) == 1
    assert len(house.topics.partitions[TP1].markers) == 1


@housed()
async def test_a_restart_finishes_what_an_offline_partition_held_up(house: House) -> None:
    producer = await opened(house)
    house.topics.partitions[TP0].failing = ErrorCode.KAFKA_STORAGE_ERROR
    with refused(ErrorCode.COORDINATOR_NOT_AVAILABLE):
        await house.coordinator.end("x", producer, True)
    assert state_of(house) is State.ONGOING
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        await house.coordinator.end("x", producer, False)
    await house.restart()
    assert state_of(house) is State.PREPARE_ABORT
    house.topics.partitions[TP0].failing = None
    await house.restart()
    assert state_of(house) is State.COMPLETE_ABORT


@housed()
async def test_a_deleted_topic_is_done_with(house: House) -> None:
    producer = await opened(house)
    house.make_topic("u")
    await house.coordinator.add_partitions("x", producer, [("u", 0)])
    house.topics.delete("t")
    await house.coordinator.end("x", producer, True)
    assert state_of(house) is State.COMPLETE_COMMIT
    assert len(house.topics.partitions["u", 0].markers) == 1


@pytest.mark.parametrize("commit", [True, False])
def test_a_topic_deleted_at_the_last_moment_is_done_with(commit: bool) -> None:
    """While its data is being synced (at a commit), or while its marker is being written."""

    @housed()
    async def inside(house: House) -> None:
        producer = await opened(house)
        partition = house.topics.partitions[TP0]
        partition.failing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        partition.when_asked = lambda: house.topics.delete("t")
        await house.coordinator.end("x", producer, commit)
        assert state_of(house) is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)

    inside()


@housed()
async def test_a_topic_made_again_gets_no_marker_of_the_old_one(house: House) -> None:
    producer = await opened(house)
    house.topics.delete("t")
    house.make_topic("t")
    await house.coordinator.end("x", producer, True)
    assert house.topics.partitions[TP0].log == []


@housed()
async def test_a_topic_made_again_and_written_to_gets_its_marker(house: House) -> None:
    producer = await opened(house)
    house.topics.delete("t")
    house.make_topic("t")
    house.coordinator.check_produce("x", *producer, *TP0)
    house.topics.partitions[TP0].produce(producer, "w")
    await house.coordinator.end("x", producer, True)
    assert house.topics.partitions[TP0].read() == {"w": "committed"}


@housed()
async def test_a_topic_made_again_can_be_added_again(house: House) -> None:
    producer = await opened(house)
    house.topics.delete("t")
    house.make_topic("t")
    await house.coordinator.add_partitions("x", producer, [TP0])
    await house.restart()
    await house.coordinator.end("x", producer, True)
    assert len(house.topics.partitions[TP0].markers) == 1
