"""Share groups, and how far they have come. confluent-kafka's admin client has no calls for them: they are made here.

The connection is plain or TLS; a cluster that requires SASL is not asked, and the figures are unknown.
"""

import socket
import ssl
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from headrace.config.reachability import addresses_of
from headrace.config.run import RunConfig
from headrace.errors import KafkaError, Unreachable

__all__ = ["SharePosition", "share_group_states", "share_positions"]

FIND_COORDINATOR, LIST_GROUPS, DESCRIBE_SHARE_OFFSETS = 10, 16, 90
SECONDS = 10.0
ASKED = ("PLAINTEXT", "SSL")


@dataclass(frozen=True, slots=True)
class SharePosition:
    """Of a partition: the first offset that is not done, and how many records are not done; None if unknown."""

    start: int
    lag: int | None


def share_group_states(config: RunConfig, brokers: Iterable[tuple[str, int]]) -> dict[str, str]:
    """The share groups that these brokers look after, with their states. Empty if the cluster cannot be asked."""
    found: dict[str, str] = {}
    if config.security_protocol.upper() not in ASKED:
        return found
    for host, port in brokers:
        try:
            with _connected(config, host, port) as connection:
                answer = _asked(connection, LIST_GROUPS, 5, _length(0) + _length(1) + _text("share"))
        except OSError as error:
            raise Unreachable(f"could not list the share groups of {host}:{port}: {error}") from error
        answer.number("i")
        answer.number("h")
        for _ in range(answer.length()):
            group, _, state, _ = (answer.text() or "" for _ in range(4))
            answer.tags()
            found[group] = state.lower()
    return found


def share_positions(config: RunConfig, group: str) -> dict[tuple[str, int], SharePosition] | None:
    """By topic and partition. Empty for a group that does not exist; None if the cluster cannot be asked."""
    if config.security_protocol.upper() not in ASKED:
        return None
    last: OSError | None = None
    for host, port in addresses_of(config.kafka_address):
        try:
            with _connected(config, host, port) as connection:
                coordinator = _coordinator(connection, group)
            with _connected(config, *coordinator) as connection:
                return _described(connection, group)
        except OSError as error:
            last = error
    raise Unreachable(f"could not ask {config.kafka_address} for the offsets of share group {group!r}: {last}")


def _connected(config: RunConfig, host: str, port: int) -> socket.socket:
    connection = socket.create_connection((host, port), timeout=SECONDS)
    if config.security_protocol.upper() == "PLAINTEXT":
        return connection
    settings = config.librdkafka_settings()
    context = ssl.create_default_context(cafile=settings.get("ssl.ca.location"))
    if certificate := settings.get("ssl.certificate.location"):
        context.load_cert_chain(certificate, settings.get("ssl.key.location"), settings.get("ssl.key.password"))
    if settings.get("ssl.endpoint.identification.algorithm", "https") == "none":
        context.check_hostname = False
    return context.wrap_socket(connection, server_hostname=host)


def _coordinator(connection: socket.socket, group: str) -> tuple[str, int]:
    answer = _asked(connection, FIND_COORDINATOR, 4, b"\x00" + _length(1) + _text(group) + b"\x00")
    answer.number("i")  # throttle time
    answer.length()
    answer.text()
    answer.number("i")  # node
    host, port, code = answer.text() or "", answer.number("i"), answer.number("h")
    if code:
        raise KafkaError(f"share group {group!r} has no coordinator (error {code})")
    return host, port


def _described(connection: socket.socket, group: str) -> dict[tuple[str, int], SharePosition]:
    body = _length(1) + _text(group) + b"\x00" + b"\x00" + b"\x00"  # no list of topics: all of them
    answer = _asked(connection, DESCRIBE_SHARE_OFFSETS, 1, body)
    answer.number("i")
    found: dict[tuple[str, int], SharePosition] = {}
    for _ in range(answer.length()):
        answer.text()
        for _ in range(answer.length()):
            topic = answer.text() or ""
            answer.skip(16)
            for _ in range(answer.length()):
                partition, start, _, lag = (answer.number(kind) for kind in "iqiq")
                code = answer.number("h")
                answer.text()
                answer.tags()
                if not code and start >= 0:
                    found[topic, partition] = SharePosition(start, lag if lag >= 0 else None)
            answer.tags()
        answer.number("h")  # of a group that does not exist
        answer.text()
        answer.tags()
    return found


def _asked(connection: socket.socket, api: int, version: int, body: bytes) -> "_Answer":
    request = struct.pack(">hhih", api, version, 1, len(b"headrace")) + b"headrace\x00" + body + b"\x00"
    connection.sendall(struct.pack(">i", len(request)) + request)
    size = struct.unpack(">i", _received(connection, 4))[0]
    answer = _Answer(_received(connection, size))
    answer.number("i")  # correlation id
    answer.tags()
    return answer


def _received(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise ConnectionError("the connection was closed")
        parts += part
    return bytes(parts)


def _length(count: int) -> bytes:
    """Of a compact array or string, whose length is below 127 here, or of a longer group's name."""
    value = count + 1
    return bytes([value]) if value < 128 else bytes([value & 0x7F | 0x80, value >> 7])


def _text(text: str) -> bytes:
    return _length(len(text.encode())) + text.encode()


class _Answer:
    """The fields of an answer, one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, kind: str) -> Any:
        size = struct.calcsize(">" + kind)
        self._at += size
        return struct.unpack(">" + kind, self._data[self._at - size : self._at])[0]

    def length(self) -> int:
        return max(0, self._varint() - 1)

    def text(self) -> str | None:
        size = self._varint() - 1
        if size < 0:
            return None
        self.skip(size)
        return self._data[self._at - size : self._at].decode()

    def skip(self, size: int) -> None:
        self._at += size

    def tags(self) -> None:
        for _ in range(self._varint()):
            self._varint()
            self.skip(self._varint())

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 128:
                return value
            shift += 7
