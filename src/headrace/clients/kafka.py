"""The errors of librdkafka as Headrace's errors."""

import re

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException

from headrace.errors import InputError, KafkaError, NotDelivered, TopicNotFound, Unreachable

__all__ = ["explained", "not_delivered", "refused_settings"]

NO_BROKER = {
    ClientError._TRANSPORT,
    ClientError._TIMED_OUT,
    ClientError._ALL_BROKERS_DOWN,
    ClientError._RESOLVE,
}
NO_TOPIC = {
    ClientError.UNKNOWN_TOPIC_OR_PART,
    ClientError._UNKNOWN_TOPIC,
    ClientError._UNKNOWN_PARTITION,
}


def explained(error: ClientError | KafkaException, what: str, address: str) -> KafkaError:
    """The client's error as one of ours. `what` completes "could not ..."."""
    said: ClientError = error.args[0] if isinstance(error, KafkaException) else error
    problem = f"could not {what} at {address}: {_reason(said)}"
    if said.code() in NO_BROKER:
        return Unreachable(problem, next_step="find the cause with: headrace doctor", code=said.name())
    if said.code() in NO_TOPIC:
        return TopicNotFound(problem, next_step="list the topics with: headrace topics list", code=said.name())
    return KafkaError(problem, code=said.name())


def not_delivered(error: ClientError, topic: str, address: str) -> KafkaError:
    """Why a record was not acknowledged."""
    if error.code() in NO_TOPIC:
        return TopicNotFound(
            f"topic {topic!r} does not exist at {address}",
            next_step=f"run the app, which creates it, or use: headrace topics create {topic}",
            code=error.name(),
        )
    problem = f"a record for topic {topic!r} was not acknowledged by {address}: {_reason(error)}"
    return NotDelivered(problem, next_step="send it again", code=error.name())


def refused_settings(error: KafkaException) -> InputError:
    return InputError(f"invalid client setting: {error.args[0].str()}")


def _reason(error: ClientError) -> str:
    """Without the "Broker:" and "Local:" that librdkafka puts before it."""
    return re.sub(r"\b(Broker|Local): ", "", error.str() or error.name()).strip()
