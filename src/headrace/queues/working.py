"""A worker that runs in this process, until it is stopped."""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Event
from typing import Any, Protocol

from headrace.config.cluster import Cluster
from headrace.config.run import RunConfig
from headrace.queues.delayed import prepare_delays
from headrace.queues.jobs import Figures, Jobs
from headrace.queues.ordered import OrderedSlots
from headrace.queues.sending import ensure_topics
from headrace.queues.slots import ShareSlots
from headrace.threads import Threads
from headrace.topology import OrderBy, Topology, Worker

__all__ = ["WorkerRun", "prepare_queues", "worker_figures"]

FOLDER = "workers"
NOTE_EVERY = 1.0
GRACE_SECONDS = 15.0
"""How long jobs in progress may take to finish after a stop; then they are given back."""


class Slots(Protocol):
    def start(self) -> None: ...
    def join(self) -> None: ...


def prepare_queues(topology: Topology, config: RunConfig) -> None:
    """Create the topics of the queues and their workers that do not exist."""
    cluster = Cluster(config)
    names = [name for queue in topology.queues for name in (queue.topic_name, queue.dead)]
    names += [worker.retry_topic for worker in topology.workers]
    ensure_topics(cluster, config, *names)
    into = [worker.into.topic_name for worker in topology.workers if worker.into is not None]
    known = cluster.partitions(into)
    for name in into:
        if name not in known:
            cluster.create(name, None, config.topic_settings)
    prepare_delays(cluster, config)


class WorkerRun:
    """Processes messages from `start` to `stop`. `figures` says what it did."""

    def __init__(self, worker: Worker, config: RunConfig, threads: Threads) -> None:
        self.worker = worker
        self.figures = Figures()
        self._threads = threads
        self._jobs = Jobs(worker, config, self.figures)
        kind: Callable[..., Slots] = OrderedSlots if worker.order_by is OrderBy.KEY else ShareSlots
        self._slots = kind(worker, config, self._jobs, threads)
        self._note = config.home / FOLDER / f"{worker.group}-{os.getpid()}.json"
        self._ended = Event()

    def start(self) -> None:
        self._slots.start()
        self._noting = self._threads.start(f"{self.worker.name} figures", self._keep_noting)

    def stop(self, grace: float = GRACE_SECONDS) -> None:
        """Take no new messages; those in progress are finished, or given back when the `grace` is over."""
        self._jobs.give_up_at = time.monotonic() + grace
        self._jobs.stopping.set()
        self._slots.join()
        self._jobs.close()
        self._ended.set()
        self._noting.join()

    def _keep_noting(self) -> None:
        """Write the figures to the home folder, where `headrace queues` finds them. The lock says that it runs."""
        self._note.parent.mkdir(parents=True, exist_ok=True)
        with self._note.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            try:
                while not self._ended.wait(NOTE_EVERY):
                    said = {"group": self.worker.group, "queue": self.worker.queue.topic_name, **self.figures.shown()}
                    file.seek(0)
                    file.write(json.dumps(said).ljust(400) + "\n")
                    file.flush()
            finally:
                self._note.unlink(missing_ok=True)


def worker_figures(home: Path) -> Iterator[Mapping[str, Any]]:
    """What each worker that runs in this home folder has noted."""
    for path in sorted((home / FOLDER).glob("*.json")):
        try:
            with path.open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if text := file.read().strip():
                        yield json.loads(text)
                else:
                    path.unlink(missing_ok=True)  # of a process that was killed
        except (OSError, ValueError):
            continue
