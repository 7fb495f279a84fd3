"""A Kafka cluster for the commands: clients that fail fast, with errors that say what to do.

Importing this loads librdkafka, so the commands import it only once they run.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka import KafkaError as ClientError
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec, TopicDescription

from headrace import GroupInUse, GroupNotFound, InputError, KafkaError, TopicNotFound, Unreachable
from headrace.cli.output import note
from headrace.config.reachability import check_reachable
from headrace.topology.nearest import nearest

REQUEST_SECONDS = 15.0

_KINDS: dict[int, tuple[type[KafkaError], str | None]] = {
    ClientError._TRANSPORT: (Unreachable, "find the cause with: headrace doctor"),
    ClientError._TIMED_OUT: (Unreachable, "find the cause with: headrace doctor"),
    ClientError._ALL_BROKERS_DOWN: (Unreachable, "find the cause with: headrace doctor"),
    ClientError.UNKNOWN_TOPIC_OR_PART: (TopicNotFound, "list the topics with: headrace topics list"),
    ClientError._UNKNOWN_TOPIC: (TopicNotFound, "list the topics with: headrace topics list"),
    ClientError._UNKNOWN_PARTITION: (TopicNotFound, "list the partitions with: headrace topics describe TOPIC"),
    ClientError.NON_EMPTY_GROUP: (GroupInUse, "stop the members first"),
    ClientError.UNKNOWN_MEMBER_ID: (GroupInUse, "stop the members first"),
    ClientError.GROUP_ID_NOT_FOUND: (GroupNotFound, "list the groups with: headrace groups list"),
}

T = TypeVar("T")
Partitions = dict[tuple[str, int], int]  # (topic, partition) -> offset


@dataclass(frozen=True)
class Cluster:
    """One address, and the client settings to reach it."""

    address: str
    settings: Mapping[str, str]
    is_guess: bool = False
    """Whether the address is the default one, because none was given."""

    def admin(self) -> AdminClient:
        return self._client(AdminClient, {})

    def producer(self, settings: Mapping[str, Any]) -> Producer:
        return self._client(Producer, settings)

    def consumer(self, settings: Mapping[str, Any]) -> Consumer:
        return self._client(Consumer, settings)

    def _client(self, kind: Callable[[dict[str, Any]], T], settings: Mapping[str, Any]) -> T:
        self.check_reachable()
        lost = False

        def on_error(error: ClientError) -> None:
            nonlocal lost
            if error.code() == ClientError._ALL_BROKERS_DOWN and not lost:
                lost = True
                note(f"headrace: {self.address} does not answer; retrying")

        config: dict[str, Any] = {
            "bootstrap.servers": self.address,
            "client.id": "headrace",
            "log_level": 0,  # librdkafka's own lines say less than the errors below
            "error_cb": on_error,
            **settings,
            **self.settings,
        }
        try:
            return kind(config)
        except KafkaException as error:
            message = str(error.args[0].str())
            raise InputError(
                f"invalid client setting: {message}",
                next_step="correct --kafka-set, HEADRACE_KAFKA_... or [kafka-settings] of headrace.toml",
            ) from error

    def check_reachable(self) -> None:
        """Fail at once, with the reason; librdkafka would retry silently until its timeout."""
        try:
            check_reachable(self.address, security_protocol=self.settings.get("security.protocol", "PLAINTEXT"))
        except Unreachable as error:
            if not self.is_guess:
                raise
            raise Unreachable(
                f"no Kafka address was given, there is no home folder here, and {error.problem}",
                next_step="start a broker with: headrace up; or set --kafka, HEADRACE_KAFKA or kafka in headrace.toml",
            ) from error

    @contextmanager
    def asked_to(self, what: str) -> Iterator[None]:
        """Turn the client's exceptions into ours. `what` completes "could not ..."."""
        try:
            yield
        except KafkaException as error:
            raise self.explain(error.args[0], what) from error

    def explain(self, error: ClientError, what: str) -> KafkaError:
        """The client's error as one of ours."""
        kind, next_step = _KINDS.get(error.code(), (KafkaError, None))
        problem = f"could not {what} at {self.address}: {reason(error)}"
        return kind(problem, next_step=next_step, code=error.name())

    def topic(self, admin: AdminClient, name: str, how_to_create: str | None = None) -> TopicDescription:
        """The topic with its partitions. Does not create it."""
        future = admin.describe_topics(TopicCollection([name]), request_timeout=REQUEST_SECONDS)[name]
        try:
            description: TopicDescription = self.result(future, f"describe topic {name!r}")
            return description
        except TopicNotFound as error:
            create = how_to_create or f"create it with: headrace topics create {name}"
            near = nearest(name, self._topic_names(admin))
            raise TopicNotFound(
                f"topic {name!r} does not exist at {self.address}",
                next_step=create if near is None else f"did you mean {near!r}? or {create}",
                code=error.code,
            ) from error

    def create(self, admin: AdminClient, name: str) -> None:
        """Create a topic with the cluster's defaults, unless it has been created meanwhile."""
        future = admin.create_topics([NewTopic(name, -1, -1)], request_timeout=REQUEST_SECONDS)[name]
        try:
            self.result(future, f"create topic {name!r}")
        except KafkaError as error:
            if error.code != "TOPIC_ALREADY_EXISTS":
                raise

    def _topic_names(self, admin: AdminClient) -> list[str]:
        with self.asked_to("list topics"):
            return sorted(admin.list_topics(timeout=REQUEST_SECONDS).topics)

    def result(self, future: "Future[T]", what: str) -> T:
        with self.asked_to(what):
            return future.result()

    def offsets(
        self,
        admin: AdminClient,
        partitions: Sequence[tuple[str, int]],
        spec: OffsetSpec,
        **options: Any,
    ) -> Partitions:
        """The offset each partition has at `spec`; -1 where a timestamp is past the last record."""
        if not partitions:
            return {}
        asked = {TopicPartition(topic, index): spec for topic, index in partitions}
        futures = admin.list_offsets(asked, request_timeout=REQUEST_SECONDS, **options)
        return {
            (key.topic, key.partition): self.result(future, f"list offsets of {key.topic}[{key.partition}]").offset
            for key, future in futures.items()
        }


def reason(error: ClientError) -> str:
    """What happened, without the "Broker:" and "Local:" that librdkafka puts before it."""
    return re.sub(r"\b(Broker|Local): ", "", error.str() or error.name()).strip()
