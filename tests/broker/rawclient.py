"""A blocking client that sends any request in any version, or any bytes at all."""

import socket
import struct
from collections.abc import Mapping
from types import SimpleNamespace, TracebackType
from typing import Any, Self

from headrace.broker.wire import codec


class RawClient:
    """One connection. `recv_frame` raises ConnectionError when the broker closed it."""

    def __init__(self, host: str, port: int, client_id: str | None = "raw", timeout: float = 10.0) -> None:
        self.client_id = client_id
        self.socket = socket.create_connection((host, port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def call(self, api_key: int, version: int, body: Mapping[str, Any] | None = None) -> SimpleNamespace:
        """Send a request and read its response."""
        return self.receive(api_key, version, self.send(api_key, version, body))

    def send(self, api_key: int, version: int, body: Mapping[str, Any] | None = None) -> int:
        """Send a request; its correlation id is returned."""
        self._correlation_id += 1
        header = codec.request_header(api_key, version, self._correlation_id, self.client_id)
        self.send_frame(header + codec.write_request(api_key, version, body or {}))
        return self._correlation_id

    def receive(self, api_key: int, version: int, correlation_id: int) -> SimpleNamespace:
        """Read the response to the request of that correlation id, which must be the next one."""
        frame = self.recv_frame()
        header = codec.response_header(api_key, version, correlation_id)
        assert frame[: len(header)] == header, f"expected the header {header!r}, got {frame[:8]!r}"
        return codec.read_response(api_key, version, memoryview(frame), len(header))

    def send_frame(self, payload: bytes) -> None:
        """Send bytes with their length before them."""
        self.send_bytes(struct.pack(">i", len(payload)) + payload)

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(data)

    def recv_frame(self) -> bytes:
        """The next frame, without its length."""
        (length,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(length)

    def closed_by_peer(self) -> bool:
        """Whether the broker closes the connection without another byte, within the timeout."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _exactly(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            part = self.socket.recv(min(size - len(received), 1 << 20))
            if not part:
                raise ConnectionError(f"closed after {len(received)} of {size} bytes")
            received += part
        return bytes(received)
