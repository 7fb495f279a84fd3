"""What is measured on brokers and files: CPU, memory, the page cache, the time to the first answer."""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import struct
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Figures:
    """The same measure over several rounds."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def show(self, digits: int = 0, unit: str = "") -> str:
        low, high = (f"{value:,.{digits}f}" for value in (min(self.values), max(self.values)))
        middle = f"{self.median:,.{digits}f}{unit}"
        return middle if len(self.values) == 1 else f"{middle} ({low}-{high})"


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """User and system time of all threads of the processes."""
    total = 0.0
    for process in processes:
        times = process.cpu_times()
        total += times.user + times.system
    return total


def busiest_thread(process: psutil.Process, before: dict[int, float]) -> float:
    """CPU seconds of the thread that used most since `before`, itself a result of `thread_seconds`."""
    now = thread_seconds(process)
    return max(seconds - before.get(thread, 0.0) for thread, seconds in now.items())


def thread_seconds(process: psutil.Process) -> dict[int, float]:
    return {thread.id: thread.user_time + thread.system_time for thread in process.threads()}


def anonymous_bytes(processes: Iterable[psutil.Process]) -> int:
    """Memory that is the processes' own: neither files nor what is shared with them."""
    total = 0
    for process in processes:
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                total += int(line.split()[1]) * 1024
    return total


def drop_from_page_cache(files: Sequence[Path]) -> float:
    """Write the files out and forget them; returns the share that stayed in memory all the same (mapped pages do)."""
    for path in files:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)
    return resident_share(files)


def resident_share(files: Sequence[Path]) -> float:
    tool = shutil.which("fincore")
    if tool is None:
        raise RuntimeError("fincore (util-linux) is needed to see that files are out of the page cache")
    words = [tool, "--bytes", "--raw", "--noheadings", "--output", "RES,SIZE", *map(str, files)]
    rows = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    resident, size = (sum(int(row.split()[column]) for row in rows) for column in (0, 1))
    return resident / size if size else 0.0


def first_metadata(port: int, topics: dict[str, int], limit: float) -> float:
    """Seconds until Metadata names every topic with all its partitions led; polled without a client library."""
    started = time.perf_counter()
    while (waited := time.perf_counter() - started) < limit:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=limit - waited) as connection:
                if _led_partitions(connection, list(topics)) == topics:
                    return time.perf_counter() - started
        except OSError:
            pass
        time.sleep(0.002)
    raise TimeoutError(f"no full Metadata answer on port {port} within {limit} s")


def _led_partitions(connection: socket.socket, topics: Sequence[str]) -> dict[str, int]:
    """How many partitions of each topic have a leader, by a Metadata request of version 1."""
    names = b"".join(struct.pack("!h", len(name)) + name.encode() for name in topics)
    body = struct.pack("!hhih", 3, 1, 7, -1) + struct.pack("!i", len(topics)) + names
    connection.sendall(struct.pack("!i", len(body)) + body)
    (size,) = struct.unpack("!i", _exactly(connection, 4))
    answer = _Reader(_exactly(connection, size))
    answer.int32()
    for _ in range(answer.int32()):
        answer.int32(), answer.string(), answer.int32(), answer.string()
    answer.int32()
    led: dict[str, int] = {}
    for _ in range(answer.int32()):
        answer.int16()
        name = answer.string()
        answer.skip(1)
        led[name] = 0
        for _ in range(answer.int32()):
            error = answer.int16()
            answer.int32()
            led[name] += error == 0 and answer.int32() >= 0
            for _ in range(2):
                answer.skip(4 * answer.int32())
    return led


def greet(connection: socket.socket) -> None:
    """Have the broker answer ApiVersions, as every client does after connecting."""
    body = struct.pack("!hhih", 18, 0, 1, -1)
    connection.sendall(struct.pack("!i", len(body)) + body)
    (size,) = struct.unpack("!i", _exactly(connection, 4))
    _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise ConnectionError("closed by the broker")
        parts += part
    return bytes(parts)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def skip(self, size: int) -> None:
        self.at += size

    def int16(self) -> int:
        self.at += 2
        return int.from_bytes(self.data[self.at - 2 : self.at], "big", signed=True)

    def int32(self) -> int:
        self.at += 4
        return int.from_bytes(self.data[self.at - 4 : self.at], "big", signed=True)

    def string(self) -> str:
        size = self.int16()
        if size < 0:
            return ""
        self.at += size
        return self.data[self.at - size : self.at].decode()
