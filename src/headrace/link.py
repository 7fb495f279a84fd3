"""What `headrace run` and its driver process tell each other: JSON objects, one per line, over a socket."""

import json
import os
import select
import socket
from threading import Lock
from typing import Any

__all__ = ["Link"]


class Link:
    """One end of the connection. `receive` is for one thread, `send` for any."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._received = b""
        self._sending = Lock()

    @classmethod
    def inherited(cls, descriptor: int) -> "Link":
        """The end that this process was started with."""
        os.set_inheritable(descriptor, False)
        return cls(socket.socket(fileno=descriptor))

    def send(self, **message: Any) -> None:
        try:
            with self._sending:
                self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            pass  # the other process has ended, which `receive` reports

    def receive(self, timeout: float | None = None) -> dict[str, Any] | None:
        """The next message; None if there is none within the timeout. EOFError if the other process has ended."""
        while b"\n" not in self._received:
            if not select.select([self._socket], [], [], timeout)[0]:
                return None
            try:
                part = self._socket.recv(65536)
            except ConnectionError:
                part = b""
            if not part:
                raise EOFError
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message
