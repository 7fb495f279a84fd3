"""What the disk gives a broker that syncs: the same bytes, written and synced by a program that does nothing else."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.measure import Figures

BATCH = {"java": 16 * 1024, "librdkafka": 1000 * 1000}
"""What a client sends of a partition in a request, by its default settings."""
REQUEST = 1024 * 1024
IN_FLIGHT = 5
"""The requests that an idempotent producer has unanswered at most."""
SYNCING_AT_ONCE = 4
"""As the broker does it."""


def synced_bytes_at_once(client: str, partitions: int) -> int:
    """The most that a client has unacknowledged, which is the most that a broker can sync together."""
    many = partitions if client == "java" else 1  # librdkafka sends a request for each partition
    return min(BATCH[client] * many, REQUEST) * IN_FLIGHT


def synced_rate(folder: Path, client: str, partitions: int, size: int, rounds: int, seconds: float) -> Figures:
    """Records of a size a second that the disk takes if each round of writes is synced before the next."""
    files = min(partitions, IN_FLIGHT) if client == "librdkafka" else partitions
    share = max(size, synced_bytes_at_once(client, partitions) // files)
    data = os.urandom(share)
    folder.mkdir()
    paths = [folder / str(number) for number in range(files)]
    opened = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for path in paths]
    rates = []
    try:
        with ThreadPoolExecutor(SYNCING_AT_ONCE) as pool:
            for _ in range(rounds):
                os.sync()
                written, began = 0, time.perf_counter()
                while (took := time.perf_counter() - began) < seconds:
                    for file in opened:
                        written += os.write(file, data)
                    for _ in pool.map(os.fdatasync, opened):
                        pass
                rates.append(written / size / took)
    finally:
        for file, path in zip(opened, paths, strict=True):
            os.close(file)
            path.unlink()
        folder.rmdir()
    return Figures(tuple(rates))
