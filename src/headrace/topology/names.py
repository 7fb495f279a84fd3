"""Names that several packages share: of channels, of columns beside a row's own, and of a record's headers."""

__all__ = [
    "DELETED",
    "ERROR_HEADER",
    "FAILED",
    "LATE",
    "OFFSET_HEADER",
    "ORDER",
    "PARTITION_HEADER",
    "REASON_HEADER",
    "REJECTED",
    "STAYS",
    "TIMESTAMP_HEADER",
    "TIME_HEADER",
    "TOPIC_HEADER",
    "VALID_FROM",
    "failed_topic",
    "rejected_topic",
]

LATE, REJECTED, FAILED = "late", "rejected", "failed"
"""The channels of Headrace's own: rows behind the watermark, records that cannot be used, and rows on which a function
raised."""

DELETED = "_deleted"
"""Of the rows of a table or a view: whether the key was deleted."""
VALID_FROM = "_time"
"""Of a table's rows: the time from which they are valid."""
ORDER = "_order"
"""Of a table's rows: which of a key's came last. Of records that are to be written: the event time by which the batch
is sorted, null where there is none."""
STAYS = "_order_stays"
"""Of a view's rows: of two rows of a key that are equal in the view's order, the one for which it is true wins."""

REASON_HEADER, ERROR_HEADER = "headrace-reason", "headrace-error"
"""Of a record that was rejected or failed: why, and the last line of the traceback."""
TOPIC_HEADER, PARTITION_HEADER = "headrace-topic", "headrace-partition"
OFFSET_HEADER, TIMESTAMP_HEADER = "headrace-offset", "headrace-timestamp"
"""Of the same records: where they were read, and the timestamp that they had there."""
TIME_HEADER = "headrace-time"
"""Of a table's record: the time from which it is valid, if neither its value nor its timestamp has it."""


def rejected_topic(topic: str) -> str:
    """Where the records of a topic go that cannot be used."""
    return f"{topic}.{REJECTED}"


def failed_topic(topic: str) -> str:
    """Where the rows go on which a function of the node that writes the topic raised."""
    return f"{topic}.{FAILED}"
