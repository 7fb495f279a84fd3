"""The Kafka cluster as every part of Headrace sees it: topics, settings, offsets. Every call ends within a limit."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaException, Producer, TopicCollection, TopicPartition, Uuid
from confluent_kafka import KafkaError as ClientError
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, TopicDescription

from headrace.config.kafka_errors import explained, refused_settings
from headrace.config.reachability import check_reachable
from headrace.config.run import Offsets, RunConfig
from headrace.errors import InputError, KafkaError, TopicNotFound, Unreachable
from headrace.topology.nearest import nearest

__all__ = ["REQUEST_SECONDS", "Cluster", "Partitions"]

REQUEST_SECONDS = 15.0
DEFAULT = -1  # the cluster's own number of partitions or replicas
SIZES = ("partitions", "replication.factor")
NO_ID = str(Uuid(0, 0))

T = TypeVar("T")
Partitions = dict[tuple[str, int], int]
"""(topic, partition) and an offset."""


class Cluster:
    """One cluster. Connects when it is first asked for something."""

    def __init__(
        self,
        config: RunConfig,
        *,
        is_guess: bool = False,
        next_step: str | None = None,
        on_lost: Callable[[str], None] | None = None,
    ) -> None:
        """`is_guess`: no address was given, it is where a broker usually is. `next_step` is said where the client
        rejects its settings; `on_lost` is called once when the cluster stops answering.
        """
        self.address = config.kafka_address
        self.config = config
        self._is_guess = is_guess
        self._next_step = next_step
        self._on_lost = on_lost

    @cached_property
    def admin(self) -> AdminClient:
        return self._client(AdminClient, {})

    def producer(self, settings: Mapping[str, Any]) -> Producer:
        return self._client(Producer, settings)

    def consumer(self, settings: Mapping[str, Any]) -> Consumer:
        return self._client(Consumer, settings)

    def check_reachable(self) -> None:
        """Fail at once, with the reason, where librdkafka would retry silently until its time is up."""
        try:
            check_reachable(self.address, security_protocol=self.config.security_protocol)
        except Unreachable as error:
            if not self._is_guess:
                raise
            raise Unreachable(
                f"no Kafka address was given, there is no home folder here, and {error.problem}",
                next_step="start a broker with: headrace up; or set --kafka, HEADRACE_KAFKA or kafka in headrace.toml",
            ) from error

    def id(self) -> str:
        future = self.admin.describe_cluster(request_timeout=REQUEST_SECONDS)
        return str(self.result(future, "read the cluster id").cluster_id)

    def topic_names(self) -> list[str]:
        with self.asked_to("list topics"):
            return sorted(self.admin.list_topics(timeout=REQUEST_SECONDS).topics)

    def partitions(self, topics: Iterable[str]) -> dict[str, int]:
        """How many partitions each of the topics has. Topics that do not exist are left out, and not created."""
        return {name: len(found.partitions) for name, found in self._described(topics).items()}

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The ids by which a topic differs from another of the same name; older clusters have none."""
        ids = {name: str(found.topic_id) for name, found in self._described(topics).items()}
        return {name: id for name, id in ids.items() if id not in (NO_ID, "None")}

    def topic(self, name: str, how_to_create: str | None = None) -> TopicDescription:
        """A topic that must exist; it is not created. `how_to_create` is said if it is missing."""
        found = self._described([name]).get(name)
        if found is not None:
            return found
        create = how_to_create or f"create it with: headrace topics create {name}"
        near = nearest(name, self.topic_names())
        raise TopicNotFound(
            f"topic {name!r} does not exist at {self.address}",
            next_step=create if near is None else f"did you mean {near!r}? or {create}",
            code="UNKNOWN_TOPIC_OR_PART",
        )

    def create(
        self, name: str, partitions: int | None = None, settings: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Create a topic, with the cluster's defaults; it is no error if another process created it first."""
        sizes = {size: _size(size, settings) for size in SIZES if size in settings}
        topic = NewTopic(
            name,
            sizes.get("partitions", partitions or DEFAULT),
            sizes.get("replication.factor", DEFAULT),
            config={setting: value for setting, value in settings.items() if setting not in SIZES},
        )
        future = self.admin.create_topics([topic], request_timeout=REQUEST_SECONDS)[name]
        try:
            self.result(future, f"create topic {name!r}")
        except KafkaError as error:
            if error.code != "TOPIC_ALREADY_EXISTS":
                raise

    def topic_setting(self, setting: str, topics: Iterable[str]) -> dict[str, str]:
        """The value of one setting by topic. Topics that do not exist are left out."""
        asked = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in topics]
        found: dict[str, str] = {}
        if asked:
            for resource, future in self.admin.describe_configs(asked, request_timeout=REQUEST_SECONDS).items():
                try:
                    settings = self.result(future, f"describe the settings of topic {resource.name!r}")
                except TopicNotFound:
                    continue
                found[resource.name] = settings[setting].value
        return found

    def beginnings(self, topics: Iterable[str]) -> dict[str, dict[int, int]]:
        return self._topic_offsets(topics, OffsetSpec.earliest())

    def ends(self, topics: Iterable[str]) -> dict[str, dict[int, int]]:
        """The high watermarks: open transactions are counted as well."""
        return self._topic_offsets(topics, OffsetSpec.latest())

    def filled(self, topics: Iterable[str]) -> dict[str, dict[int, int]]:
        """The ends of those partitions that hold records."""
        names = [*topics]
        beginnings = self.beginnings(names)
        return {
            topic: {partition: end for partition, end in ends.items() if end > beginnings[topic][partition]}
            for topic, ends in self.ends(names).items()
        }

    def offsets_at(self, topic: str, milliseconds: int) -> dict[int, int]:
        """The first record of each partition that is not older; the end where all are."""
        ends = self.ends([topic])[topic]
        found = self._topic_offsets([topic], OffsetSpec.for_timestamp(milliseconds))[topic]
        return {partition: end if found[partition] < 0 else found[partition] for partition, end in ends.items()}

    def offsets(self, partitions: Sequence[tuple[str, int]], spec: OffsetSpec, **options: Any) -> Partitions:
        """The offset each partition has at `spec`; -1 where a timestamp is past the last record."""
        if not partitions:
            return {}
        asked = {TopicPartition(topic, index): spec for topic, index in partitions}
        futures = self.admin.list_offsets(asked, request_timeout=REQUEST_SECONDS, **options)
        return {
            (key.topic, key.partition): self.result(future, f"list offsets of {key.topic}[{key.partition}]").offset
            for key, future in futures.items()
        }

    def delete_before(self, offsets: Offsets) -> None:
        """Delete old records."""
        asked = [
            TopicPartition(topic, partition, offset)
            for topic, partitions in offsets.items()
            for partition, offset in partitions.items()
        ]
        for partition, future in self.admin.delete_records(asked, request_timeout=REQUEST_SECONDS).items():
            self.result(future, f"delete old records of {partition.topic!r}")

    def result(self, future: "Future[T]", what: str) -> T:
        with self.asked_to(what):
            return future.result(REQUEST_SECONDS * 2)

    @contextmanager
    def asked_to(self, what: str) -> Iterator[None]:
        """Turn the client's exceptions into ours. `what` completes "could not ..."."""
        try:
            yield
        except KafkaException as error:
            raise self.explain(error, what) from error
        except TimeoutError as error:
            raise Unreachable(f"could not {what} at {self.address}: no answer") from error

    def explain(self, error: ClientError | KafkaException, what: str) -> KafkaError:
        """The client's error as one of ours. `what` completes "could not ..."."""
        return explained(error, f"{what} at {self.address}")

    def _described(self, topics: Iterable[str]) -> dict[str, TopicDescription]:
        names = sorted(set(topics))
        if not names:
            return {}
        found: dict[str, TopicDescription] = {}
        futures = self.admin.describe_topics(TopicCollection(names), request_timeout=REQUEST_SECONDS)
        for name, future in futures.items():
            try:
                found[name] = self.result(future, f"describe topic {name!r}")
            except TopicNotFound:
                pass
        return found

    def _topic_offsets(self, topics: Iterable[str], spec: OffsetSpec) -> dict[str, dict[int, int]]:
        names = [*topics]
        asked = [(topic, partition) for topic, count in self.partitions(names).items() for partition in range(count)]
        found: dict[str, dict[int, int]] = {topic: {} for topic in names}
        for (topic, partition), offset in self.offsets(asked, spec).items():
            found[topic][partition] = offset
        return found

    def _client(self, kind: Callable[[dict[str, Any]], T], settings: Mapping[str, Any]) -> T:
        own: dict[str, Any] = {} if self._on_lost is None else {"error_cb": self._lost_once(self._on_lost)}
        try:
            return kind({**own, **settings, **self.config.client_settings()})
        except KafkaException as error:
            raise refused_settings(error, self._next_step) from error

    def _lost_once(self, on_lost: Callable[[str], None]) -> Callable[[ClientError], None]:
        lost = False

        def on_error(error: ClientError) -> None:
            nonlocal lost
            if error.code() == ClientError._ALL_BROKERS_DOWN and not lost:
                lost = True
                on_lost(self.address)

        return on_error


def _size(name: str, settings: Mapping[str, str]) -> int:
    try:
        return int(settings[name])
    except ValueError:
        raise InputError(f"{name} of new topics must be a number, not {settings[name]!r}") from None
