"""The processes of queues: the delay service and the workers, as children of a run or as commands of their own."""

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any

from confluent_kafka import KafkaException

from headrace.config.cluster import Cluster
from headrace.config.run import RunConfig
from headrace.errors import InputError, KafkaError
from headrace.queues.delays import DelayService
from headrace.queues.inspecting import figures_of
from headrace.queues.working import WorkerRun, prepare_queues
from headrace.supervised import Child, Supervisor
from headrace.threads import Threads, stopped_by_signals
from headrace.topology import Topology, Worker, did_you_mean, load_app

__all__ = ["children", "delays_child", "serve_until_stopped", "work_until_stopped", "worker_child"]

HERE = "headrace.queues.running"
REPORT_EVERY = 0.5
LOOK_EVERY = 3.0
SHIPPED = ("kafka", "kafka_settings", "topic_settings")


def children(topology: Topology, config: RunConfig) -> list[Child]:
    """The delay service, if the app has queues, and a process for each worker."""
    if not topology.queues:
        return []
    task = {name: _plain(getattr(config, name)) for name in SHIPPED} | {"home": str(config.home.absolute())}
    delays = Child("delays", f"{HERE}:delays_child", task | {"name": topology.app_name})
    own = task | {"file": topology.file, "app": topology.app_name}
    workers = [
        Child(f"worker {worker.name}", f"{HERE}:worker_child", own | {"worker": worker.name})
        for worker in topology.workers
    ]
    return [delays, *workers]


def delays_child(supervisor: Supervisor, task: Mapping[str, Any]) -> None:
    service = DelayService(_config(task), instance_name(Path(task["home"]), task["name"]), notice=supervisor.remark)
    threads = Threads()
    threads.start("delays", service.run)
    while not supervisor.wait(REPORT_EVERY):
        threads.check()
        supervisor.report(pending=service.pending, handed_over=service.handed_over)
    service.stop()


def worker_child(supervisor: Supervisor, task: Mapping[str, Any]) -> None:
    worker, config = _worker(task), _config(task)
    threads = Threads()
    run = WorkerRun(worker, config, threads)
    run.start()
    cluster = Cluster(config)
    queue: dict[str, Any] = {}
    look_at = 0.0
    while not supervisor.wait(REPORT_EVERY):
        threads.check()
        if time.monotonic() > look_at:
            queue = _queue_figures(worker, cluster, config) or queue
            look_at = time.monotonic() + LOOK_EVERY
        own = {"in progress": run.figures.in_progress, "done": run.figures.done, "retried": run.figures.retried}
        supervisor.report(**queue, **own)
    run.stop()


def _queue_figures(worker: Worker, cluster: Cluster, config: RunConfig) -> dict[str, Any]:
    """What is known of the worker's queue. Nothing while the cluster does not answer."""
    try:
        found = figures_of(cluster, config, worker.queue.topic_name, worker.group, worker.queue.dead)
    except (KafkaError, KafkaException):
        return {}
    oldest = None if found.oldest is None else f"{found.oldest:,.0f} s"
    known = {"waiting": found.waiting, "delayed": found.delayed, "dead": found.dead, "oldest": oldest}
    return {name: value for name, value in known.items() if value is not None}


def serve_until_stopped(config: RunConfig, notice: Callable[[str], None]) -> None:
    """The delay service as a command of its own, until SIGTERM or Ctrl-C."""
    service = DelayService(config, instance_name(config.home, "up"), notice=notice)
    with stopped_by_signals(service.stop):
        service.run()


def work_until_stopped(
    topology: Topology, names: Sequence[str], config: RunConfig, notice: Callable[[str], None]
) -> None:
    """Workers in this process, without Spark, until SIGTERM or Ctrl-C."""
    workers = [worker for worker in topology.workers if not names or worker.name in names]
    known = [worker.name for worker in topology.workers]
    for name in names:
        if name not in known:
            raise InputError(
                f"app {topology.app_name!r} has no worker {name!r}", next_step=did_you_mean(name, known) or None
            )
    if not workers:
        raise InputError(
            f"app {topology.app_name!r} has no workers",
            next_step="declare one with @app.worker(queue) above a function",
        )
    prepare_queues(topology, config)
    threads = Threads()
    stopped = Event()
    # Retries need a delay service. Of all that run on a cluster one is active.
    delays = DelayService(config, instance_name(config.home, f"work-{os.getpid()}"), notice=notice)
    serving = threads.start("delays", delays.run)
    runs = [WorkerRun(worker, config, threads) for worker in workers]
    with stopped_by_signals(stopped.set):
        for run in runs:
            run.start()
        notice(f"{topology.app_name} works: {', '.join(worker.name for worker in workers)}; Ctrl-C stops it")
        while not stopped.wait(REPORT_EVERY) and threads.failure is None:
            pass
        for run in runs:
            run.stop()
        delays.stop()
        serving.join()
    threads.check()
    for run in runs:
        shown = ", ".join(f"{value:,} {name}" for name, value in run.figures.shown().items() if name != "in_progress")
        notice(f"{run.worker.name}: {shown}")


def instance_name(home: Path, who: str) -> str:
    """A name in the group of delay services that is the same at every start."""
    return f"{os.uname().nodename}-{hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:16]}-{who}"


def _worker(task: Mapping[str, Any]) -> Worker:
    topology = load_app(task["file"], task["app"]).topology()
    return next(worker for worker in topology.workers if worker.name == task["worker"])


def _config(task: Mapping[str, Any]) -> RunConfig:
    return RunConfig(home=Path(task["home"]), **{name: task[name] for name in SHIPPED})


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value
