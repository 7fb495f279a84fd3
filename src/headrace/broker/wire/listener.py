"""The listening socket and the connections it has accepted."""

import asyncio
import contextlib
import logging
import socket
from typing import TYPE_CHECKING

from headrace.broker.wire.connection import Connection
from headrace.broker.wire.memory import RequestMemory

if TYPE_CHECKING:
    from headrace.broker.server import Broker

logger = logging.getLogger(__name__)

_SCRATCH = 256 * 1024
_BACKLOG = 1024
_SWEEP_SECONDS = 2.0
_STALLED_SECONDS = 10.0
_SETTLE_SECONDS = 5.0


class Listener:
    def __init__(self, broker: "Broker", host: str, port: int) -> None:
        self.broker = broker
        self.stopping = False
        self.scratch = memoryview(bytearray(_SCRATCH))
        self.memory = RequestMemory(broker.settings.queued_max_request_bytes)
        self._connections: set[Connection] = set()
        self._accepted = 0
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self._socket.setblocking(False)
        self.host, self.port = self._socket.getsockname()[:2]
        self._loop = asyncio.get_running_loop()
        self._sweeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._loop.add_reader(self._socket.fileno(), self._accept)
        self._sweeper = asyncio.create_task(self._sweep())

    def take_no_more(self) -> None:
        """Accept no connection and read no request from now on; long polls are answered at once."""
        self.stopping = True
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._connections):
            connection.stop()

    async def close(self) -> None:
        """Finish the requests in progress, then close every connection."""
        deadline = self._loop.time() + _SETTLE_SECONDS
        while self._loop.time() < deadline and not all(connection.settled for connection in self._connections):
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.close()

    def forget(self, connection: Connection) -> None:
        self._connections.discard(connection)

    def _accept(self) -> None:
        for _ in range(_BACKLOG):
            try:
                sock, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # Out of descriptors, mostly: the client waits in the backlog until one is free.
                logger.warning("a connection could not be accepted: %s", error)
                self._loop.remove_reader(self._socket.fileno())
                self._loop.call_later(1.0, self._accept_again)
                return
            if len(self._connections) >= self.broker.settings.max_connections:
                logger.warning("%s was refused: max.connections is reached", address[0])
                sock.close()
                continue
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._accepted += 1
            self._connections.add(Connection(self, sock, address[0], self._accepted))

    def _accept_again(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._loop.add_reader(self._socket.fileno(), self._accept)

    async def _sweep(self) -> None:
        """Close connections that are idle for too long, and stalled ones that hold memory others wait for."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            now = self.broker.clock.monotonic()
            idle_ms = self.broker.settings.connections_max_idle_ms
            for connection in list(self._connections):
                quiet = now - connection.active_at
                if (idle_ms >= 0 and quiet * 1000 > idle_ms and not connection.busy) or (
                    self.memory.exhausted and connection.holds_memory and quiet > _STALLED_SECONDS
                ):
                    connection.close()
