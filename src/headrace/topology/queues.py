"""Queues and their workers as plain declarations: each message is for one worker, retried, or moved to dead letters."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from headrace.errors import InputError
from headrace.topology.choices import Choice, Format
from headrace.topology.declaring import Declaration, KeyLike, name_of
from headrace.topology.duration import Duration, DurationLike
from headrace.topology.nodes import Feed, FunctionNode, Node, Parameter, Topic
from headrace.topology.schema import SchemaLike
from headrace.topology.sources import read_source

__all__ = ["Backoff", "OrderBy", "Queue", "QueueDeclarations", "Worker"]

N = TypeVar("N", bound=Node)
Function = Callable[..., Any]

MOST_SLOTS = 160  # Kafka allows 200 members in a share group, and a worker has some for retries too
SHORTEST_TIMEOUT = Duration.of("100 milliseconds")
MESSAGE = "message"
"""The parameter of a worker's function that gets the message with its id and attempts, where it has one."""


class OrderBy(Choice):
    """What keeps its order: nothing, or the messages of each key."""

    NOTHING = ""
    KEY = "key"


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pause before a retry: the first one, doubled for each further failure, up to the longest."""

    first: Duration
    longest: Duration

    @classmethod
    def of(cls, value: "str | DurationLike | Backoff") -> "Backoff":
        """Read `"1s..1m"`; one duration alone is a pause that stays the same."""
        if isinstance(value, Backoff):
            return value
        if isinstance(value, str) and ".." in value:
            first, _, longest = value.partition("..")
            found = cls(Duration.of(first), Duration.of(longest))
        else:
            found = cls(Duration.of(value), Duration.of(value))
        if found.longest < found.first:
            raise InputError(
                f"{value!r} ends before it begins", next_step='write the shorter pause first, as in "1s..1m"'
            )
        return found

    def pause(self, failures: int) -> Duration:
        """The pause after so many failures."""
        doubled = self.first.microseconds << min(max(0, failures - 1), 62)
        return Duration(min(doubled, self.longest.microseconds))

    def __str__(self) -> str:
        return str(self.first) if self.first == self.longest else f"{self.first}..{self.longest}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Queue(Topic):
    """A topic whose messages are jobs: each group of workers gets each message once, and acknowledges it alone."""

    kind = "queue"

    retries: int
    backoff: Backoff
    dead: str
    """The topic of the messages that failed too often."""

    @property
    def drawing_facts(self) -> Iterator[str]:
        yield from super().drawing_facts
        yield f"{self.retries} {'retry' if self.retries == 1 else 'retries'}, back-off {self.backoff}"
        yield f"dead letters to {self.dead}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Worker(FunctionNode):
    """A function that is called with each message of a queue. It runs without Spark, in as many processes as wanted."""

    kind = "worker"
    is_worker: ClassVar[bool] = True

    queue: Queue
    concurrency: int
    timeout: Duration
    into: Topic | None
    order_by: OrderBy
    takes_message: bool

    @property
    def group(self) -> str:
        """The group of all processes that run this worker: each message is for one of them."""
        return f"{self.app_name}.{self.name}"

    @property
    def retry_topic(self) -> str:
        """Where this group's retries are sent: other groups, and readers of the log, do not see them."""
        return f"{self.queue.topic_name}.retry.{self.group}"

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    @property
    def drawing_facts(self) -> Iterator[str]:
        yield f"concurrency {self.concurrency}"
        yield f"timeout {self.timeout}"
        if self.order_by is OrderBy.KEY:
            yield "in order by key"
        if self.into is not None:
            yield f"into {self.into.name}"


class Declares(Protocol):
    """What a declaration needs of the app."""

    name: str
    queue_type: type[Queue]

    def _declaration(self, kind: str, name: str) -> Declaration: ...
    def _topic_name(self, declaration: Declaration, name: str, topic: str | None) -> str: ...
    def _add(self, declaration: Declaration, node: N) -> N: ...


class QueueDeclarations:
    """The declarations of queues and workers, as methods of the app."""

    queue_type: ClassVar[type[Queue]] = Queue

    def queue(
        self: Declares,
        name: str,
        schema: SchemaLike,
        *,
        key: KeyLike = None,
        retries: int = 5,
        backoff: str | DurationLike | Backoff = "1s..1m",
        dead: str | None = None,
        topic: str | None = None,
    ) -> Queue:
        """A queue: a topic whose messages are taken one by one by workers, and acknowledged one by one.

        A message whose worker raises is tried again up to `retries` times, after a pause that doubles within
        `backoff`; then it is moved to the topic `dead`, by default the queue's topic with `.dead`.
        """
        declaration = self._declaration("queue", name)
        topic_name = self._topic_name(declaration, name, topic)
        read = read_source(declaration, schema, Format.JSON, key, None, None, None, ())
        tries = declaration.read("retries", _retries, retries, 0)
        pause = declaration.read("backoff", Backoff.of, backoff, Backoff(Duration(0), Duration(0)))
        dead_name = f"{topic_name}.dead" if dead is None else dead
        declaration.check_topic_name(dead_name)
        if dead_name == topic_name:
            declaration.problem("dead letters cannot go to the queue itself", "name another topic")
        return self._add(
            declaration,
            self.queue_type(
                app_name=self.name,
                name=name,
                place=declaration.place,
                schema=read.schema,
                key=read.key,
                event_time=None,
                lateness=read.lateness,
                ahead=None,
                topic_name=topic_name,
                retries=tries,
                backoff=pause,
                dead=dead_name,
            ),
        )

    def worker(
        self: Declares,
        queue: Queue,
        *,
        concurrency: int = 1,
        timeout: DurationLike = "30 seconds",
        into: Topic | None = None,
        order_by: str = "",
    ) -> Callable[[Function], Worker]:
        """A plain or async function that is called with each message of a queue, `concurrency` of them at a time.

        A message is acknowledged when the function returns. If it raises, or takes longer than `timeout`, the message
        is retried as the queue says. What it returns is sent to the topic `into`. A parameter named `message` gets the
        message itself: its id, key, headers and attempts. With `order_by="key"` the messages of a key are processed in
        order, one at a time.
        """

        def declare(function: Function) -> Worker:
            name = name_of(function, "worker(queue)")
            declaration = self._declaration("worker", name)
            if not isinstance(queue, Queue):
                shown = f"the {queue.kind} {queue}" if isinstance(queue, Feed) else repr(queue)
                raise InputError(
                    f"a worker reads a queue, and {shown} is not one",
                    next_step='declare it with app.queue("jobs", schema), and write @app.worker(jobs)',
                )
            if into is not None and not isinstance(into, Topic):
                declaration.problem(
                    f"into: {into} is not a topic that can be written",
                    'declare one: results = app.topic("results", schema), and write into=results',
                )
            ordered = declaration.read("order_by", OrderBy.of, order_by, OrderBy.NOTHING)
            if ordered is OrderBy.KEY and not queue.key:
                declaration.problem(
                    f"order_by: the queue {queue.name!r} has no key",
                    f'add one: app.queue("{queue.name}", ..., key="id")',
                )
            parameter, takes_message = _row_parameter(function, declaration)
            return self._add(
                declaration,
                Worker(
                    app_name=self.name,
                    name=name,
                    place=declaration.place,
                    function=function,
                    parameters=(Parameter(parameter, queue),),
                    queue=queue,
                    concurrency=declaration.read("concurrency", _slots, concurrency, 1),
                    timeout=declaration.read("timeout", _timeout, timeout, SHORTEST_TIMEOUT),
                    into=into if isinstance(into, Topic) else None,
                    order_by=ordered,
                    takes_message=takes_message,
                ),
            )

        return declare


def _row_parameter(function: Function, declaration: Declaration) -> tuple[str, bool]:
    """The parameter that gets the row, and whether there is one for the message."""
    parameters = list(inspect.signature(function).parameters.values())
    usual = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    rows = [one for one in usual if one.name != MESSAGE and one.default is one.empty]
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        declaration.problem("a worker's function returns at most one row", "return it: no yield")
    if len(rows) != 1 or len(usual) != len(parameters):
        declaration.problem(
            "its function takes one row of the queue",
            f"write def {getattr(function, '__name__', 'work')}(row), or (row, message) to see the message's id too",
        )
    return (rows[0].name if rows else "row"), any(one.name == MESSAGE for one in usual)


def _retries(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1000:
        raise InputError(f"{value!r} is not a number of retries", next_step="use a number from 0 to 1000")
    return value


def _slots(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_SLOTS:
        raise InputError(f"{value!r} is not a number of messages", next_step=f"use a number from 1 to {MOST_SLOTS}")
    return value


def _timeout(value: Any) -> Duration:
    found = Duration.of(value)
    if found < SHORTEST_TIMEOUT:
        raise InputError(f"{found} is too short", next_step=f'make it at least "{SHORTEST_TIMEOUT}"')
    return found
