"""One client's socket: frames in, responses out in the order of the requests, within the memory that is granted."""

import asyncio
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.storage.reading import Slice
from headrace.broker.store import StoreError
from headrace.broker.wire import codec
from headrace.broker.wire.apis import APIS
from headrace.broker.wire.codec import MalformedRequest, RequestHeader
from headrace.broker.wire.fetch import Fetch
from headrace.broker.wire.handlers import RequestContext, dispatch
from headrace.broker.wire.handlers.api_versions import unsupported_version_body
from headrace.broker.wire.produce import Produce
from headrace.broker.wire.share_fetch import ShareFetch

if TYPE_CHECKING:
    from headrace.broker.wire.listener import Listener

logger = logging.getLogger(__name__)

PRODUCE, FETCH, API_VERSIONS, SHARE_FETCH = 0, 1, 18, 78
_SIZE = struct.Struct(">i")
_SEND_AT_ONCE = 4 * 1024 * 1024  # bytes of one connection before the others get their turn

Parts = list[bytes | Slice]


class Answer:
    """The place of one response in the queue of its connection."""

    __slots__ = ("_connection", "parts")

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self.parts: Parts | None = None

    def send(self, parts: Parts) -> None:
        """`parts` follow one another on the wire; a slice of a file is sent from there."""
        self.parts = parts
        self._connection.answered()


class Connection:
    def __init__(self, listener: "Listener", sock: socket.socket, host: str, number: int) -> None:
        self.listener = listener
        self.number = number
        self.broker = listener.broker
        self.host = host
        self.active_at = self.broker.clock.monotonic()
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._fd = sock.fileno()
        self._closed = False
        self._reading = False
        self._busy = False  # a request is being served that the next one must wait for
        self._frame: memoryview | None = None  # a frame that did not come in one piece
        self._filled = 0
        self._rest = b""  # bytes after a request that is being served
        self._answers: deque[Answer] = deque()
        self._out: deque[bytes | memoryview | Slice] = deque()
        self._writing = False
        self._taking = False
        self._waiting_for_memory = False
        self._more_waits = False  # the client has sent more than is served now
        self._current: asyncio.Task[None] | Fetch | ShareFetch | None = None
        self._regulate()

    # -- reading -----------------------------------------------------------------------------------------------------

    @property
    def holds_memory(self) -> bool:
        return self._frame is not None

    @property
    def busy(self) -> bool:
        return self._busy

    def _readable(self) -> None:
        if self._busy or self._out:
            self._look_for_the_end()
            return
        frame, kept = self._frame, len(self._rest)
        if frame is not None:
            target = frame[self._filled :]
        elif self.listener.memory.exhausted:
            self._wait_for_memory()
            return
        else:
            self.listener.scratch[:kept] = self._rest
            target = self.listener.scratch[kept:]
        try:
            count = self._socket.recv_into(target)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            count = 0
        if not count:
            self.close()
            return
        self.active_at = self.broker.clock.monotonic()
        if frame is None:
            self._rest = b""
            self._take(self.listener.scratch[: kept + count])
            return
        self._filled += count
        if self._filled == len(frame):
            self._frame = None
            self._taking = True
            try:
                self._serve(frame[4:])
            finally:
                self._taking = False
                self.listener.memory.give_back(frame)
            self.go_on()

    def _look_for_the_end(self) -> None:
        """While a request is served no other is read, but a disconnected client is noticed."""
        try:
            gone = not self._socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            gone = True
        if gone:
            self.close()
        else:
            self._more_waits = True
            self._regulate()

    def _take(self, data: memoryview) -> None:
        """Serve the whole frames in `data`, and keep what is left."""
        position, end = 0, len(data)
        self._taking = True
        while position < end and not self._closed:
            size = _SIZE.unpack_from(data, position)[0] if end - position >= 4 else 0
            if self._busy or self._out or end - position < 4:
                self._rest = bytes(data[position:])
                break
            if not 0 < size <= self.broker.settings.socket_request_max_bytes:
                logger.warning("%s sent a frame of %d bytes: closing its connection", self.host, size)
                self.close()
                break
            if end - position < size + 4:
                self._begin_frame(data[position:], size + 4)
                break
            self._serve(data[position + 4 : position + 4 + size])
            position += size + 4
        self._taking = False
        self._regulate()

    def _begin_frame(self, start: memoryview, size: int) -> None:
        frame = self.listener.memory.grant(size)
        if frame is None:
            self._rest = bytes(start)
            self._wait_for_memory()
        else:
            frame[: len(start)] = start
            self._frame, self._filled = frame, len(start)

    def _wait_for_memory(self) -> None:
        self._waiting_for_memory = True
        self.listener.memory.queue(self)
        self._regulate()

    def memory_granted(self) -> None:
        """Memory is available for the frame that had to wait."""
        self._waiting_for_memory = False
        self.go_on()

    def go_on(self) -> None:
        """Serve what was read already, then read more."""
        if self._taking or self._closed:
            return
        if not (self._busy or self._out):
            self._more_waits = False
        if len(self._rest) >= 4 and not (self._busy or self._out or self._waiting_for_memory):
            data = memoryview(bytearray(self._rest))
            self._rest = b""
            self._take(data)
        else:
            self._regulate()

    def _regulate(self) -> None:
        wanted = not (self._closed or self._more_waits or self._waiting_for_memory or self.listener.stopping)
        if wanted and not self._reading:
            self._loop.add_reader(self._fd, self._readable)
        elif self._reading and not wanted:
            self._loop.remove_reader(self._fd)
        self._reading = wanted

    # -- serving -----------------------------------------------------------------------------------------------------

    def _serve(self, frame: memoryview) -> None:
        try:
            header = codec.read_header(frame)
            key, version = header.api_key, header.api_version
            api = APIS.get(key)
            if api is None or not api.min <= version <= api.max:
                self._serve_unsupported(header)
            elif key == PRODUCE:
                Produce(self, header, frame).begin()
            elif key == FETCH:
                request = codec.read_request(key, version, frame, header.body_offset)
                self._current = Fetch(self, header, request)
                self._busy = True
                self._current.begin()
            elif key == SHARE_FETCH:
                request = codec.read_request(key, version, frame, header.body_offset)
                self._current = ShareFetch(self, header, request)
                self._busy = True
                self._current.begin()
            else:
                request = codec.read_request(key, version, frame, header.body_offset)
                self.serve_in_order(self._dispatch(header, request, self.promise()))
        except MalformedRequest as error:
            logger.warning("%s sent a malformed request: %s; closing its connection", self.host, error)
            self.close()
        except Exception:
            logger.exception("a request of %s could not be served: closing its connection", self.host)
            self.close()

    def _serve_unsupported(self, header: RequestHeader) -> None:
        if header.api_key == API_VERSIONS:
            self.promise().send([frame_of(_SIZE.pack(header.correlation_id) + unsupported_version_body())])
            return
        logger.warning(
            "%s asked for API %d version %d, which is not served: closing its connection",
            self.host,
            header.api_key,
            header.api_version,
        )
        self.close()

    def promise(self) -> Answer:
        """Reserve the place of a response that is sent later."""
        answer = Answer(self)
        self._answers.append(answer)
        return answer

    def serve_in_order(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`; the next request starts after it."""
        self._busy = True
        task = self._loop.create_task(work)
        self._current = task
        task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a request of %s failed", self.host, exc_info=error)
            self.close()
        self.done()

    def done(self) -> None:
        """The current request is answered: the next can start."""
        self._busy = False
        self._current = None
        self.go_on()

    async def _dispatch(self, header: RequestHeader, request: SimpleNamespace, answer: Answer) -> None:
        key, version = header.api_key, header.api_version
        try:
            context = RequestContext(version, header.client_id, self.host, self.number)
            body = await dispatch(self.broker, key, request, context)
        except ApiError as error:
            body = {"error_code": error.code}
        except StoreError as error:
            logger.warning("%s could not be served: %s", APIS[key].name, error)
            body = {"error_code": ErrorCode.KAFKA_STORAGE_ERROR}
        except Exception:
            logger.exception("%s version %d failed", APIS[key].name, version)
            body = {"error_code": ErrorCode.UNKNOWN_SERVER_ERROR}
        if isinstance(body, dict) and body.keys() == {"error_code"} and not codec.has_error_code(key, version):
            # The answer has no place for an error as a whole: a closed connection says it.
            self.close()
            return
        data = body if isinstance(body, bytes) else codec.write_response(key, version, body)
        answer.send([frame_of(codec.response_header(key, version, header.correlation_id) + data)])

    # -- answering ---------------------------------------------------------------------------------------------------

    def answered(self) -> None:
        while self._answers and self._answers[0].parts is not None:
            self._out.extend(self._answers.popleft().parts or ())
        if self._out and not self._writing:
            self._write()

    def _write(self) -> None:
        """Send until the socket is full; a long response yields to other connections in between."""
        out, sent = self._out, 0
        try:
            while out and sent < _SEND_AT_ONCE:
                part = out[0]
                if isinstance(part, Slice):
                    count = os.sendfile(self._fd, part.file.fd, part.byte, part.length)
                    if not count:
                        raise OSError(f"{part.length} bytes are missing in the log")
                    rest: bytes | memoryview | Slice = Slice(part.file, part.byte + count, part.length - count)
                    whole = count == part.length
                else:
                    count = self._socket.send(part, socket.MSG_MORE if len(out) > 1 else 0)
                    whole = count == len(part)
                    rest = part if whole else memoryview(part)[count:]
                sent += count
                if whole:
                    out.popleft()
                else:
                    out[0] = rest
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self.close()
            return
        if sent:
            self.active_at = self.broker.clock.monotonic()
        if bool(out) != self._writing:
            self._writing = bool(out)
            if out:
                self._loop.add_writer(self._fd, self._write)
            else:
                self._loop.remove_writer(self._fd)
        if not out:
            self.go_on()

    # -- the end -----------------------------------------------------------------------------------------------------

    @property
    def settled(self) -> bool:
        """Nothing is being served or sent."""
        return self._closed or not (self._busy or self._answers or self._out)

    def stop(self) -> None:
        """Take no more requests, and answer a long poll now."""
        self._regulate()
        if isinstance(self._current, Fetch | ShareFetch):
            self._current.finish()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._regulate()
        if self._writing:
            self._loop.remove_writer(self._fd)
        if isinstance(self._current, Fetch | ShareFetch):
            self._current.abandon()
        if self._frame is not None:
            self.listener.memory.give_back(self._frame)
            self._frame = None
        self._out.clear()
        self._answers.clear()
        self._rest = b""
        self._socket.close()
        self.broker.groups.share.connection_closed(self.number)
        self.listener.forget(self)


def frame_of(response: bytes) -> bytes:
    return _SIZE.pack(len(response)) + response
