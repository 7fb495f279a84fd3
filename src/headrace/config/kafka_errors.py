"""What a Kafka client reports, as Headrace's errors: one table of codes, with what to do about each."""

import re
from typing import NamedTuple

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException

from headrace.errors import GroupInUse, GroupNotFound, InputError, KafkaError, NotDelivered, TopicNotFound, Unreachable

__all__ = ["explained", "is_transient", "not_delivered", "reason", "refused_settings"]


class _Meaning(NamedTuple):
    kind: type[KafkaError]
    next_step: str | None = None


DOCTOR = "find the cause with: headrace doctor"
LIST_TOPICS = "list the topics with: headrace topics list"
LIST_GROUPS = "list the groups with: headrace groups list"
STOP_MEMBERS = "stop the members first"

MEANINGS: dict[int, _Meaning] = {
    ClientError._TRANSPORT: _Meaning(Unreachable, DOCTOR),
    ClientError._TIMED_OUT: _Meaning(Unreachable, DOCTOR),
    ClientError._ALL_BROKERS_DOWN: _Meaning(Unreachable, DOCTOR),
    ClientError._RESOLVE: _Meaning(Unreachable, DOCTOR),
    ClientError._MSG_TIMED_OUT: _Meaning(Unreachable, DOCTOR),
    ClientError.UNKNOWN_TOPIC_OR_PART: _Meaning(TopicNotFound, LIST_TOPICS),
    ClientError._UNKNOWN_TOPIC: _Meaning(TopicNotFound, LIST_TOPICS),
    ClientError._UNKNOWN_PARTITION: _Meaning(TopicNotFound, "list the partitions with: headrace topics describe TOPIC"),
    ClientError.NON_EMPTY_GROUP: _Meaning(GroupInUse, STOP_MEMBERS),
    ClientError.UNKNOWN_MEMBER_ID: _Meaning(GroupInUse, STOP_MEMBERS),
    ClientError.GROUP_ID_NOT_FOUND: _Meaning(GroupNotFound, LIST_GROUPS),
    ClientError.INVALID_MSG: _Meaning(
        KafkaError,
        "a batch of this partition cannot be read: use an offset instead of a time, or name other partitions with "
        "--partition",
    ),
    ClientError.MSG_SIZE_TOO_LARGE: _Meaning(KafkaError, "raise max.message.bytes of the topic"),
}
# Errors that end by themselves, or with the next try by a new producer.
TRANSIENT = {code for code, meaning in MEANINGS.items() if meaning.kind is Unreachable} | {
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


def explained(error: ClientError | KafkaException, what: str) -> KafkaError:
    """The client's error as one of ours. `what` completes "could not ..."."""
    said = _said(error)
    meaning = MEANINGS.get(said.code(), _Meaning(KafkaError))
    return meaning.kind(f"could not {what}: {reason(said)}", next_step=meaning.next_step, code=said.name())


def not_delivered(error: ClientError | KafkaException, topic: str, address: str) -> KafkaError:
    """Why a record was not acknowledged."""
    said = _said(error)
    meaning = MEANINGS.get(said.code())
    if meaning is not None and meaning.kind is TopicNotFound:
        return TopicNotFound(
            f"topic {topic!r} does not exist at {address}",
            next_step=f"run the app, which creates it, or use: headrace topics create {topic}",
            code=said.name(),
        )
    problem = f"a record for topic {topic!r} was not acknowledged by {address}: {reason(said)}"
    return NotDelivered(problem, next_step="send it again", code=said.name())


def refused_settings(error: KafkaException, next_step: str | None = None) -> InputError:
    return InputError(f"invalid client setting: {_said(error).str()}", next_step=next_step)


def reason(error: ClientError) -> str:
    """What happened, without the prefixes "Broker:" and "Local:" of librdkafka."""
    return re.sub(r"\b(Broker|Local): ", "", error.str() or error.name()).strip()


def is_transient(error: BaseException | None) -> bool:
    """Whether waiting may help: the cluster is unavailable, or a transaction must be started again."""
    while error is not None:
        if isinstance(error, Unreachable):
            return True
        if isinstance(error, KafkaException) and (_said(error).code() in TRANSIENT or _said(error).retriable()):
            return True
        error = error.__cause__
    return False


def _said(error: ClientError | KafkaException) -> ClientError:
    return error.args[0] if isinstance(error, KafkaException) else error
