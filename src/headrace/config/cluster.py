"""The Kafka cluster as the engine sees it: its id, its topics and their offsets. Every call ends within a limit."""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, TopicCollection, TopicPartition, Uuid
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from headrace.config.run import Offsets, RunConfig
from headrace.errors import InputError, KafkaError, TopicNotFound, Unreachable

__all__ = ["Cluster", "explained", "is_passing"]

LIMIT = 15.0
DEFAULT = -1  # the cluster's own number of partitions or replicas
SIZES = ("partitions", "replication.factor")
NO_ID = str(Uuid(0, 0))

AWAY = {
    ClientError._TRANSPORT,
    ClientError._TIMED_OUT,
    ClientError._ALL_BROKERS_DOWN,
    ClientError._RESOLVE,
    ClientError._MSG_TIMED_OUT,
}
# What passes by itself, or with a new producer.
PASSING = AWAY | {
    ClientError._FENCED,
    ClientError.INVALID_PRODUCER_EPOCH,
    ClientError.PRODUCER_FENCED,
    ClientError.CONCURRENT_TRANSACTIONS,
    ClientError.COORDINATOR_NOT_AVAILABLE,
    ClientError.COORDINATOR_LOAD_IN_PROGRESS,
    ClientError.NOT_COORDINATOR,
    ClientError.NOT_ENOUGH_REPLICAS,
    ClientError.LEADER_NOT_AVAILABLE,
    ClientError.NOT_LEADER_FOR_PARTITION,
    ClientError.REQUEST_TIMED_OUT,
}

T = TypeVar("T")


def explained(error: ClientError, what: str) -> KafkaError:
    """The client's error as one of ours. `what` completes "could not ..."."""
    kind: type[KafkaError] = KafkaError
    if error.code() in AWAY:
        kind = Unreachable
    elif error.code() in (ClientError.UNKNOWN_TOPIC_OR_PART, ClientError._UNKNOWN_TOPIC):
        kind = TopicNotFound
    reason = (error.str() or error.name()).removeprefix("Broker: ").removeprefix("Local: ")
    advice = "raise max.message.bytes of the topic" if error.code() == ClientError.MSG_SIZE_TOO_LARGE else None
    return kind(f"could not {what}: {reason}", code=error.name(), next_step=advice)


def is_passing(error: BaseException | None) -> bool:
    """Whether waiting may help: the cluster is unavailable, or the transaction must be repeated."""
    while error is not None:
        if isinstance(error, Unreachable):
            return True
        if isinstance(error, KafkaException) and (error.args[0].code() in PASSING or error.args[0].retriable()):
            return True
        error = error.__cause__
    return False


class Cluster:
    """One cluster, by one client."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self.address = config.kafka_address
        try:
            self._admin = AdminClient(config.client_settings())
        except KafkaException as error:
            raise InputError(f"the Kafka client rejected its settings: {error.args[0].str()}") from error

    def id(self) -> str:
        with self._asked_to("ask the cluster for its id"):
            return str(self._admin.list_topics(timeout=LIMIT).cluster_id)

    def partitions(self) -> dict[str, int]:
        """How many partitions each topic has."""
        with self._asked_to("list the topics"):
            listed = self._admin.list_topics(timeout=LIMIT).topics
        return {name: len(topic.partitions) for name, topic in listed.items() if topic.error is None}

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The ids of topics: a topic that is created again has another id. Older clusters have none."""
        found = self._admin.describe_topics(TopicCollection(sorted(set(topics))), request_timeout=LIMIT)
        ids = {name: self._result(future, f"describe topic {name!r}").topic_id for name, future in found.items()}
        return {name: str(id) for name, id in ids.items() if id is not None and str(id) != NO_ID}

    def create(self, name: str, partitions: int | None, settings: Mapping[str, str]) -> None:
        """Create a topic. It is not an error if it exists."""
        sizes = {size: _size(size, settings) for size in SIZES if size in settings}
        topic = NewTopic(
            name,
            sizes.get("partitions", partitions or DEFAULT),
            sizes.get("replication.factor", DEFAULT),
            config={setting: value for setting, value in settings.items() if setting not in SIZES},
        )
        future = self._admin.create_topics([topic], request_timeout=LIMIT)[name]
        try:
            self._result(future, f"create topic {name!r}")
        except KafkaError as error:
            if error.code != "TOPIC_ALREADY_EXISTS":
                raise

    def beginnings(self, topics: Iterable[str]) -> dict[str, dict[int, int]]:
        return self._offsets(topics, OffsetSpec.earliest())

    def ends(self, topics: Iterable[str]) -> dict[str, dict[int, int]]:
        """The high watermarks, which include open transactions."""
        return self._offsets(topics, OffsetSpec.latest())

    def filled(self, topics: Iterable[str]) -> dict[str, dict[int, int]]:
        """The ends of the partitions that have records."""
        names = [*topics]
        beginnings = self.beginnings(names)
        return {
            topic: {partition: end for partition, end in ends.items() if end > beginnings[topic][partition]}
            for topic, ends in self.ends(names).items()
        }

    def offsets_at(self, topic: str, milliseconds: int) -> dict[int, int]:
        """The first offset of each partition that is not older than the time; its end if all records are."""
        ends = self.ends([topic])[topic]
        found = self._offsets([topic], OffsetSpec.for_timestamp(milliseconds))[topic]
        return {partition: end if found[partition] < 0 else found[partition] for partition, end in ends.items()}

    def delete_before(self, offsets: Offsets) -> None:
        """Delete old records."""
        asked = [
            TopicPartition(topic, partition, offset)
            for topic, partitions in offsets.items()
            for partition, offset in partitions.items()
        ]
        for partition, future in self._admin.delete_records(asked, request_timeout=LIMIT).items():
            self._result(future, f"delete old records of {partition.topic!r}")

    def _offsets(self, topics: Iterable[str], spec: OffsetSpec) -> dict[str, dict[int, int]]:
        known = self.partitions()
        asked = [
            TopicPartition(topic, partition)
            for topic in sorted(set(topics))
            for partition in range(known.get(topic, 0))
        ]
        found: dict[str, dict[int, int]] = {topic: {} for topic in topics}
        if asked:
            futures = self._admin.list_offsets(dict.fromkeys(asked, spec), request_timeout=LIMIT)
            for partition, future in futures.items():
                offset = self._result(future, f"ask topic {partition.topic!r} for its offsets").offset
                found[partition.topic][partition.partition] = offset
        return found

    def _result(self, future: "Future[T]", what: str) -> T:
        with self._asked_to(what):
            return future.result(LIMIT * 2)

    @contextmanager
    def _asked_to(self, what: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise explained(error.args[0], f"{what} at {self.address}") from error
        except TimeoutError as error:
            raise Unreachable(f"could not {what} at {self.address}: no answer") from error


def _size(name: str, settings: Mapping[str, str]) -> int:
    try:
        return int(settings[name])
    except ValueError:
        raise InputError(f"{name} of new topics must be a number, not {settings[name]!r}") from None
