"""A process that dies anywhere in the middle leaves the whole of a transaction or nothing of it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.groups.offsets import OffsetEntry
from headrace.broker.transactions.state import Producer, State
from tests.broker.transactions_harness import House

MINUTE = 60_000
PARTITIONS = [("t", 0), ("t", 1), ("t", 2)]
MOST_STEPS = 12


async def _opened() -> tuple[House, Producer]:
    house = await House().start()
    house.make_topic("t", 3)
    producer = await house.coordinator.init_producer_id("x", MINUTE)
    await house.coordinator.add_partitions("x", producer, PARTITIONS)
    await house.coordinator.add_offsets("x", producer, "g")
    await house.coordinator.commit_offsets("x", producer, "g", "", -1, None, [OffsetEntry("t", 0, 5)])
    for key in PARTITIONS:
        partition = house.topics.partitions[key]
        partition.produce(producer, f"v{partition.index}")
        partition.durable = 1
    return house, producer


def _outcome(house: House) -> str:
    """What became of the transaction: the same on every partition and for the offsets."""
    fates = {fate for each in house.topics.partitions.values() for fate in each.read().values()}
    assert len(fates) == 1, fates
    [outcome] = fates
    committed = house.offsets.fetch("g", "t", 0)
    assert (committed is not None) == (outcome == "committed")
    assert house.offsets.pending("g", "t", 0) == (outcome == "open")
    transaction = house.coordinator.get("x")
    assert transaction is not None
    assert (transaction.state is State.ONGOING) == (outcome == "open")
    assert not transaction.state.prepared
    return outcome


def _dies_at_each_step(
    act: Callable[[House, Producer], Awaitable[Any]], after: bool
) -> list[tuple[str, House, Producer]]:
    """Run `act` in one house after the other, which dies one step later each time, and then starts again."""

    async def all_steps() -> list[tuple[str, House, Producer]]:
        outcomes = []
        for steps in range(MOST_STEPS):
            house, producer = await _opened()
            house.fate.dies_in(steps, after=after)
            request = asyncio.ensure_future(act(house, producer))
            survived = await house.survives(request)
            request.cancel()
            await house.kill()
            await house.start()
            outcomes.append((_outcome(house), house, producer))
            house.stop()
            if survived:
                return outcomes
        raise AssertionError("it takes more steps than expected")

    return asyncio.run(all_steps())


@pytest.mark.parametrize("after", [True, False])
def test_a_commit_cut_short_is_whole_or_still_open(after: bool) -> None:
    outcomes = _dies_at_each_step(lambda house, producer: house.coordinator.end("x", producer, True), after)
    names = [outcome for outcome, _, _ in outcomes]
    # Data synced on three partitions, PREPARE, three markers, COMPLETE, and once it is let live.
    assert names == ["open"] * (3 if after else 4) + ["committed"] * (6 if after else 5)


@pytest.mark.parametrize("after", [True, False])
def test_an_abort_cut_short_is_whole_or_still_open(after: bool) -> None:
    outcomes = _dies_at_each_step(lambda house, producer: house.coordinator.end("x", producer, False), after)
    names = [outcome for outcome, _, _ in outcomes]
    assert names == ["open"] * (0 if after else 1) + ["aborted"] * (6 if after else 5)


@pytest.mark.parametrize("after", [True, False])
def test_a_takeover_cut_short_fences_the_predecessor_or_leaves_it_be(after: bool) -> None:
    outcomes = _dies_at_each_step(lambda house, _: house.coordinator.init_producer_id("x", MINUTE), after)
    for outcome, house, producer in outcomes:
        transaction = house.coordinator.get("x")
        assert transaction is not None
        assert (transaction.producer == producer) == (outcome == "open")


@pytest.mark.parametrize("after", [True, False])
def test_who_asks_for_its_next_epoch_gets_it_whatever_crashes(after: bool) -> None:
    async def ask_again(house: House, producer: Producer) -> None:
        await house.start()
        try:
            fresh = await house.coordinator.init_producer_id("x", MINUTE, producer)
            assert fresh.id == producer.id
            assert producer.epoch < fresh.epoch <= producer.epoch + 2
            assert await house.coordinator.init_producer_id("x", MINUTE, producer) == fresh
        finally:
            house.stop()

    outcomes = _dies_at_each_step(
        lambda house, producer: house.coordinator.init_producer_id("x", MINUTE, producer), after
    )
    for _, house, producer in outcomes:
        asyncio.run(ask_again(house, producer))


class Writer:
    """What a client of one transactional id believes."""

    def __init__(self) -> None:
        self.producer: Producer | None = None
        self.values: list[str] = []
        self.offset: int | None = None
        self.decided: tuple[list[str], int | None, str] | None = None
        """A transaction whose end is certain and may not be seen everywhere yet: values, offset and outcome."""


class Transactions(RuleBasedStateMachine):
    """Two transactional ids over three partitions and one group, in a process that dies and disks that fail."""

    names = st.sampled_from(["x", "y"])
    partitions = st.sampled_from(PARTITIONS)
    dying = st.one_of(st.none(), st.tuples(st.integers(0, 7), st.booleans()))

    @initialize()
    def begin(self) -> None:
        self.runner = asyncio.Runner()
        self.house = House()
        self.runner.run(self.house.start())
        self.house.make_topic("t", 3)
        self.writers = {"x": Writer(), "y": Writer()}
        self.zombies: list[tuple[str, Producer]] = []
        self.finished: dict[str, str] = {}
        self.committed_offset: int | None = None
        self.count = 0
        self.broken: set[tuple[str, int]] = set()

    def teardown(self) -> None:
        if hasattr(self, "house"):
            self._call(self._stop())
            self.runner.close()

    async def _stop(self) -> None:
        self.house.stop()

    def _call(self, work: Awaitable[Any]) -> Any:
        async def call() -> Any:
            return await work

        return self.runner.run(call())

    def _request(self, request: Callable[[], Awaitable[Any]], dying: tuple[int, bool] | None) -> Any:
        """The answer, an ApiError, or None if the process died over it and was started again."""

        async def ask() -> Any:
            if dying is not None:
                self.house.fate.dies_in(dying[0], after=dying[1])
            asked = asyncio.ensure_future(request())
            if await self.house.survives(asked):
                self.house.fate.dies_in(None, after=False)
                error = asked.exception()
                if error is None:
                    return ("answer", asked.result())
                assert isinstance(error, ApiError), error
                return ("error", error.code)
            asked.cancel()
            await self.house.kill()
            await self.house.start()
            return ("died", None)

        return self.runner.run(ask())

    def _decide(self, name: str, outcome: str) -> None:
        writer = self.writers[name]
        assert writer.decided is None
        writer.decided = (writer.values, writer.offset, outcome)
        writer.values, writer.offset = [], None

    def _follow(self) -> None:
        """Take note of the transactions that are complete by now."""
        for name, writer in self.writers.items():
            transaction = self.house.coordinator.get(name)
            if writer.decided is None or transaction is None or transaction.state.prepared:
                continue
            values, offset, outcome = writer.decided
            self.finished |= dict.fromkeys(values, outcome)
            if outcome == "committed" and offset is not None:
                self.committed_offset = offset
            writer.decided = None

    def _open(self, name: str) -> bool:
        transaction = self.house.coordinator.get(name)
        return transaction is not None and transaction.state is State.ONGOING

    @rule(name=names, dying=dying)
    def take_over(self, name: str, dying: tuple[int, bool] | None) -> None:
        writer = self.writers[name]
        had_open = self._open(name)
        kind, answer = self._request(lambda: self.house.coordinator.init_producer_id(name, MINUTE), dying)
        if writer.producer is not None:
            current = self.house.coordinator.get(name)
            assert current is not None
            if current.producer != writer.producer:
                self.zombies.append((name, writer.producer))
                writer.producer = None
        if had_open and not self._open(name):
            self._decide(name, "aborted")
        if kind == "answer":
            assert (name, answer) not in self.zombies
            writer.producer = answer
        else:
            assert kind == "died" or answer in (
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                ErrorCode.CONCURRENT_TRANSACTIONS,
            )

    @rule(name=names, partition=partitions, dying=dying)
    def write(self, name: str, partition: tuple[str, int], dying: tuple[int, bool] | None) -> None:
        writer = self.writers[name]
        producer = writer.producer
        if producer is None:
            return
        kind, answer = self._request(lambda: self.house.coordinator.add_partitions(name, producer, [partition]), dying)
        if kind == "answer":
            self.house.coordinator.check_produce(name, *producer, *partition)
            self.count += 1
            value = f"{name}{self.count}"
            log = self.house.topics.partitions[partition]
            log.produce(producer, value)
            log.durable = len(log.log)  # the producer waits for its acknowledgement
            writer.values.append(value)
        elif kind == "error":
            assert answer in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.CONCURRENT_TRANSACTIONS)

    @rule(name=names, dying=dying)
    def commit_offset(self, name: str, dying: tuple[int, bool] | None) -> None:
        writer = self.writers[name]
        producer = writer.producer
        other = self.writers["y" if name == "x" else "x"]
        if producer is None or other.offset is not None or other.decided is not None:
            return  # the order of two transactions on one group's offsets is the clients' own affair
        self.count += 1
        entry = OffsetEntry("t", 0, self.count)

        async def commit() -> None:
            await self.house.coordinator.add_offsets(name, producer, "g")
            await self.house.coordinator.commit_offsets(name, producer, "g", "", -1, None, [entry])

        kind, _ = self._request(commit, dying)
        if kind == "answer" or (kind == "died" and self._pending(producer) == self.count):
            writer.offset = self.count

    def _pending(self, producer: Producer) -> int | None:
        staged = self.house.offsets._pending.get(producer.id, {}).get("g", {})
        return next((offset.offset for offset in staged.values()), None)

    @rule(name=names, commit=st.booleans(), dying=dying)
    def end(self, name: str, commit: bool, dying: tuple[int, bool] | None) -> None:
        producer = self.writers[name].producer
        if producer is None:
            return
        had_open = self._open(name)
        kind, _ = self._request(lambda: self.house.coordinator.end(name, producer, commit), dying)
        transaction = self.house.coordinator.get(name)
        assert transaction is not None
        if had_open and transaction.state is not State.ONGOING:
            self._decide(name, "committed" if commit else "aborted")
        if kind == "answer":
            assert transaction.state is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)

    @rule(name=names)
    def time_out(self, name: str) -> None:
        if not any(self._open(each) for each in self.writers):
            return
        self.house.clock.advance(61)
        self._call(self.house.coordinator.abort_timed_out())
        for each, writer in self.writers.items():
            transaction = self.house.coordinator.get(each)
            if transaction is None or writer.producer is None or transaction.producer == writer.producer:
                continue
            self._decide(each, "aborted")
            self.zombies.append((each, writer.producer))
            writer.producer = None

    @rule(crash=st.booleans())
    def restart(self, crash: bool) -> None:
        async def again() -> None:
            if crash:
                await self.house.kill()
            else:
                self.house.stop()
            await self.house.start()

        self.runner.run(again())

    @rule(partition=partitions)
    def break_partition(self, partition: tuple[str, int]) -> None:
        self.broken.add(partition)
        self.house.topics.partitions[partition].failing = ErrorCode.KAFKA_STORAGE_ERROR

    @rule(writes=st.integers(0, 3))
    def fill_disk(self, writes: int) -> None:
        self.house.store.writes_left = writes

    @rule()
    def mend(self) -> None:
        for partition in self.broken:
            self.house.topics.partitions[partition].failing = None
        self.broken.clear()
        self.house.store.full, self.house.store.writes_left = False, None

        async def complete() -> None:
            for name in self.writers:
                if self.house.coordinator.get(name) is not None:
                    await self.house.coordinator._alone(name, self.house.coordinator._complete_prepared)

        self.runner.run(complete())
        for name in self.writers:
            transaction = self.house.coordinator.get(name)
            assert transaction is None or not transaction.state.prepared

    @precondition(lambda self: self.zombies)
    @rule(data=st.data(), commit=st.booleans())
    def zombie(self, data: st.DataObject, commit: bool) -> None:
        name, producer = data.draw(st.sampled_from(self.zombies))
        coordinator = self.house.coordinator
        for request in (
            lambda: coordinator.end(name, producer, commit),
            lambda: coordinator.add_partitions(name, producer, [PARTITIONS[0]]),
            lambda: coordinator.init_producer_id(name, MINUTE, producer),
        ):
            kind, answer = self._request(request, None)
            assert kind == "error"
            assert answer is ErrorCode.PRODUCER_FENCED
        with pytest.raises(ApiError):
            coordinator.check_produce(name, *producer, *PARTITIONS[0])

    @invariant()
    def everything_is_as_the_clients_believe(self) -> None:
        if not hasattr(self, "house"):
            return
        self._follow()
        found: dict[str, str] = {}
        for partition in self.house.topics.partitions.values():
            found |= partition.read()
        for name, writer in self.writers.items():
            transaction = self.house.coordinator.get(name)
            prepared = transaction is not None and transaction.state.prepared
            assert prepared == (writer.decided is not None)
            assert not prepared or self.broken or self.house.store.writes_left is not None
            assert all(found.pop(value) == "open" for value in writer.values)
            if writer.decided is not None:
                values, _, outcome = writer.decided
                assert all(found.pop(value) in ("open", outcome) for value in values)
        assert found == self.finished
        committed = self.house.offsets.fetch("g", "t", 0)
        assert (committed and committed.offset) == self.committed_offset


TestTransactions = Transactions.TestCase
TestTransactions.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
