"""Clients of every kind at once, each in a thread of its own."""

import threading
from collections.abc import Callable, Collection

from headrace.broker.errors import ErrorCode
from tests.broker.faults import facts
from tests.broker.faults.actors import (
    Administrator,
    Ager,
    ExactWriter,
    Member,
    OffsetCommitter,
    PlainWriter,
    Reader,
    TransactionalWriter,
    Trimmer,
)
from tests.broker.faults.client import Client, Refused
from tests.broker.faults.journal import Actor, Address, Journal, Note

SEGMENT_BYTES = 8192


class Workload:
    """All actors, over as many lives of the broker as the test wants."""

    def __init__(self, note: Note, seed: int) -> None:
        self.journal = Journal(note)
        journal = self.journal
        self.actors: list[Actor] = [
            PlainWriter("plain", journal, seed),
            ExactWriter("exact", journal, seed),
            TransactionalWriter("transactional", journal, seed),
            OffsetCommitter("committer", journal, seed),
            Reader("reader", journal, seed),
            Trimmer("trimmer", journal, seed),
            Ager("ager", journal, seed),
            Member("member", journal, seed),
            Administrator("administrator", journal, seed),
        ]
        small = {"segment.bytes": str(SEGMENT_BYTES)}
        self._missing: list[tuple[facts.CreateTopic, dict[str, str]]] = [
            (facts.CreateTopic("plain", 0, 2), {}),
            (facts.CreateTopic("exact", 0, 2), {"segment.bytes": str(SEGMENT_BYTES * 2)}),
            (facts.CreateTopic("mixed", 0, 2), {}),
            (facts.CreateTopic("trimmed", 0, 1), small),
            (facts.CreateTopic("aging", 0, 1, aging=True), small | {"retention.bytes": str(SEGMENT_BYTES * 3)}),
        ]

    def run(
        self,
        address: Address,
        until: Callable[[], bool],
        tolerated: Collection[ErrorCode] = (),
    ) -> None:
        """Every actor at work in a thread of its own, until told to stop or until the broker is gone.

        One that is refused for a tolerated reason waits for the broker's next life.
        """
        try:
            self.create_topics(address)
        except TimeoutError:
            raise
        except Refused as refused:
            if refused.code not in tolerated:
                raise
            return
        except OSError:
            return
        failures: list[BaseException] = []

        def work(actor: Actor) -> None:
            try:
                actor.run(address, until)
            except Refused as refused:
                if refused.code not in tolerated:
                    failures.append(refused)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=[actor], name=actor.name) for actor in self.actors]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    def create_topics(self, address: Address) -> None:
        with Client(address) as client:
            there = client.topics()
            while self._missing:
                action, configs = self._missing[0]
                number = self.journal.attempt(action)
                if action.topic not in there:
                    client.create_topic(action.topic, action.partitions, configs)
                self.journal.answer(number)
                del self._missing[0]
