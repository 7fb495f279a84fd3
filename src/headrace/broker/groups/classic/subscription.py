"""What a consumer says it subscribes to, in the metadata it joins a group with."""

import struct

CONSUMER_PROTOCOL_TYPE = "consumer"


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics named in a consumer's join metadata, or None if it is not in the consumer protocol's form.

    Only the first version's part is read: a version and the topics. Every later version begins with it.
    """
    try:
        _version, count = struct.unpack_from(">hi", metadata)
        offset = 6
        if not 0 <= count <= (len(metadata) - offset) // 2:
            return None
        topics = []
        for _ in range(count):
            (length,) = struct.unpack_from(">h", metadata, offset)
            offset += 2
            if length < 0 or offset + length > len(metadata):
                return None
            topics.append(str(metadata[offset : offset + length], "utf-8"))
            offset += length
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)
