"""One message and what becomes of it: its worker's result, a retry, or a dead letter."""

import inspect
import threading
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from headrace.clients import Producer, Record
from headrace.clients.records import record_reader
from headrace.clients.rows import RowWriter
from headrace.clients.values import columns_of
from headrace.config.run import RunConfig
from headrace.errors import InputError, KafkaError
from headrace.queues.calling import Caller
from headrace.queues.delayed import Plan, record_of_end, record_of_plan
from headrace.queues.messages import ATTEMPTS_HEADER, GROUP_HEADER, ID_HEADER, Message
from headrace.topology import App, Worker
from headrace.topology.names import (
    ERROR_HEADER,
    OFFSET_HEADER,
    PARTITION_HEADER,
    REASON_HEADER,
    TIMESTAMP_HEADER,
    TOPIC_HEADER,
)

__all__ = ["Figures", "GivenBack", "Jobs"]

MESSAGE_ID = "message_id"
"""The column of a results topic that gets the message's id, if it has one and the worker leaves it out."""
SEND_SECONDS = 60.0
OWN_HEADERS = (
    ID_HEADER, ATTEMPTS_HEADER, GROUP_HEADER, REASON_HEADER, ERROR_HEADER, TOPIC_HEADER, PARTITION_HEADER,
    OFFSET_HEADER, TIMESTAMP_HEADER,
)  # fmt: skip
WAIT = 0.05
SETTINGS = {
    "linger.ms": 0,
    "batch.num.messages": 1,
    "message.max.bytes": 1_000_000_000,  # a retry and a dead letter are a little larger than the message
}


class GivenBack(Exception):
    """The worker was stopped before the job was done."""


class TookTooLong(Exception):
    """The job's time was up."""


@dataclass
class Figures:
    """What a worker did since it started. `lock` guards them."""

    in_progress: int = 0
    done: int = 0
    retried: int = 0
    dead: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, name: str, by: int = 1) -> None:
        with self.lock:
            setattr(self, name, getattr(self, name) + by)

    def shown(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("in_progress", "done", "retried", "dead")}


class Jobs:
    """The messages of one worker in this process. Safe to use from several threads."""

    def __init__(self, worker: Worker, config: RunConfig, figures: Figures) -> None:
        self.worker = worker
        self.figures = figures
        self.stopping = threading.Event()
        self.give_up_at: float | None = None
        """After this moment, jobs that are not done are given back."""
        self._read = record_reader(worker.queue, None)
        self._results = None if worker.into is None else RowWriter(worker.into)
        self._seconds = worker.timeout.microseconds / 1e6
        self._producer = Producer(App(worker.app_name), {**config.client_settings(), **SETTINGS})

    def process(self, record: Record, deliveries: int, caller: Caller, *, retry_in_place: bool = False) -> bool:
        """Process a message; when this returns, it can be acknowledged. Raises GivenBack if it cannot.

        `deliveries` is how often this group was given the record. Returns whether it is over; otherwise there is a
        retry, which is a delayed message in the place of a lease, or the caller's own with `retry_in_place`.
        """
        message = self._message(record, deliveries)
        self.figures.add("in_progress")
        try:
            if not self.may_run(record, deliveries):
                self._bury(record, message, f"its worker died or hung {_times(message.attempt - 1)}", None, tries=-1)
                return True
            try:
                row = self._read(record).row
            except InputError as error:
                self._bury(record, message, error.problem, None)
                return True
            return self._call(record, message, row, caller, retry_in_place)
        finally:
            self.figures.add("in_progress", -1)

    def lease(self, record: Record, deliveries: int, seconds: float) -> None:
        """A copy that comes if this process does not end the job in time. The original can be acknowledged then."""
        message = self._message(record, deliveries)
        self._delay(record, message, seconds, failed=message.attempt)

    def may_run(self, record: Record, deliveries: int) -> bool:
        """Whether the function may be called with it once more."""
        return self._message(record, deliveries).attempt <= self.worker.queue.retries + 1

    def end_lease(self, record: Record) -> None:
        topic, key, _, headers = record_of_end(self._lease_id(record))
        self._sent(self._producer.send_to(topic, None, key=key, headers=headers))

    def give_back(self, record: Record, deliveries: int, seconds: float = 0.0) -> None:
        """Put a message back into the queue, as if it had not been delivered this time."""
        message = self._message(record, deliveries)
        self._delay(record, message, seconds, failed=message.attempt - 1)

    def close(self) -> None:
        with suppress(KafkaError):
            self._producer.close()  # whoever sent it was told of a failure, and dealt with it

    def _call(self, record: Record, message: Message, row: Any, caller: Caller, in_place: bool) -> bool:
        arguments = {"message": message} if self.worker.takes_message else {}
        call = caller.call(partial(self.worker.function, row, **arguments))
        try:
            result = self._result(call, caller)
            if inspect.isawaitable(result):
                raise TypeError("it returned an awaitable that nobody awaits: declare the worker with async def")
            if self._results is not None and result is not None:
                self._send_result(result, message)
        except GivenBack:
            raise
        except TookTooLong:
            reason = f"it took longer than {self.worker.timeout}"
            return self._fail(record, message, reason, reason, in_place)
        except BaseException as error:
            return self._fail(record, message, _reason(error), _last_line(error), in_place)
        self.figures.add("done")
        return True

    def _result(self, call: "Future[Any]", caller: Caller) -> Any:
        """What the function returns. Ends with TookTooLong when the time is up, with GivenBack when stopped."""
        deadline = time.monotonic() + self._seconds
        while True:
            left = deadline - time.monotonic()
            try:
                return call.result(max(0, min(left, WAIT) if self.stopping.is_set() else min(left, 1.0)))
            except TimeoutError:
                if call.done():
                    return call.result()  # it ended meanwhile, or the exception is the function's own
                if left <= 0:
                    caller.give_up(call)
                    raise TookTooLong from None
                if self.give_up_at is not None and time.monotonic() > self.give_up_at:
                    caller.give_up(call)
                    raise GivenBack from None

    def _send_result(self, result: Any, message: Message) -> None:
        assert self.worker.into is not None
        assert self._results is not None
        if MESSAGE_ID in self.worker.into.schema:
            values = dict(columns_of(result))
            result = values | {MESSAGE_ID: message.id} if values.get(MESSAGE_ID) is None else values
        key, value = self._results.write(result)
        self._sent(
            self._producer.send_to(
                self.worker.into.topic_name, value, key=key, headers=[(ID_HEADER, message.id.encode())]
            )
        )

    def _fail(self, record: Record, message: Message, reason: str, last_line: str, in_place: bool) -> bool:
        if message.attempt > self.worker.queue.retries:
            self._bury(record, message, reason, last_line)
            return True
        if not in_place:
            pause = self.worker.queue.backoff.pause(message.attempt)
            self._delay(record, message, pause.microseconds / 1e6, failed=message.attempt)
        self.figures.add("retried")
        return False

    def _delay(self, record: Record, message: Message, seconds: float, failed: int) -> None:
        headers = [*_foreign(record), (ID_HEADER, message.id.encode()), (ATTEMPTS_HEADER, str(failed).encode())]
        plan = Plan(self.worker.retry_topic, after=round(seconds * 1000))
        topic, key, value, own = record_of_plan(self._lease_id(record), plan, record.key, record.value, headers)
        self._sent(self._producer.send_to(topic, value, key=key, headers=own))

    def _bury(self, record: Record, message: Message, reason: str, last_line: str | None, tries: int = 0) -> None:
        """Move it to the dead-letter topic, with the reason."""
        place = {
            REASON_HEADER: reason,
            ERROR_HEADER: last_line or reason,
            ATTEMPTS_HEADER: str(message.attempt + tries),
            GROUP_HEADER: self.worker.group,
            TOPIC_HEADER: record.topic,
            PARTITION_HEADER: str(record.partition),
            OFFSET_HEADER: str(record.offset),
            TIMESTAMP_HEADER: "" if record.timestamp is None else record.timestamp.isoformat(),
            ID_HEADER: message.id,
        }
        headers = [*_foreign(record), *((name, text.encode()) for name, text in place.items())]
        self._sent(self._producer.send_to(self.worker.queue.dead, record.value, key=record.key, headers=headers))
        self.figures.add("dead")

    def _sent(self, future: "Future[Any]") -> None:
        future.result(SEND_SECONDS)

    def _lease_id(self, record: Record) -> bytes:
        return f"{self.worker.group}/{record.topic}-{record.partition}-{record.offset}".encode()

    def _message(self, record: Record, deliveries: int) -> Message:
        said = dict(record.headers).get(ATTEMPTS_HEADER) if record.topic == self.worker.retry_topic else None
        before = int(said) if said is not None and said.isdigit() else 0
        return Message(
            id=_id(record),
            attempt=before + max(1, deliveries),
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            key=record.key,
            headers=tuple(_foreign(record)),
            timestamp=record.timestamp,
        )


def _id(record: Record) -> str:
    own = dict(record.headers).get(ID_HEADER)
    return f"{record.topic}-{record.partition}-{record.offset}" if own is None else own.decode(errors="replace")


def _foreign(record: Record) -> Sequence[tuple[str, bytes | None]]:
    """The headers that are not Headrace's."""
    return [(name, value) for name, value in record.headers if name not in OWN_HEADERS]


def _reason(error: BaseException) -> str:
    return error.problem if isinstance(error, InputError) else _last_line(error)


def _last_line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip()


def _times(count: int) -> str:
    return "once" if count == 1 else "twice" if count == 2 else f"{count} times"
