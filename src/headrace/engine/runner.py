"""A topology that runs: one query per node, looked after until it is stopped or a node fails for good."""

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread, current_thread, main_thread
from types import FrameType
from typing import TYPE_CHECKING

from headrace.engine.checkpoints import Checkpoint, Checkpoints
from headrace.engine.cluster import Cluster
from headrace.engine.config import Offsets, RunConfig
from headrace.engine.heartbeats import Heartbeats
from headrace.engine.jars import Progress
from headrace.engine.progress import NodeProgress
from headrace.engine.session import LOCAL, runs_here, start_session
from headrace.engine.topics import ensure_inputs, ensure_markers, ensure_outputs, read_topics, real_time_slots
from headrace.errors import CheckpointError, KafkaError, NodeFailed
from headrace.topology import (
    App,
    Duration,
    Latency,
    QueryNode,
    Schema,
    StateStore,
    Stream,
    Topology,
    View,
    node_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.engine.plan import PlannedQuery
    from headrace.engine.running import NodeRun

__all__ = ["Runner"]

POLL = 0.2
PROGRESS_EVERY = 1.0


class Runner:
    """Runs an app. The addresses in `config` must be those of services that are up.

    A session that is given is left running; one that is made here ends with the run.
    """

    def __init__(self, app: App | Topology, config: RunConfig, spark: "SparkSession | None" = None) -> None:
        self.topology = app.topology() if isinstance(app, App) else app
        self.config = config
        self.checkpoints = Checkpoints(config.home, self.topology.app_name)
        self.failure: NodeFailed | None = None
        self.kept: dict[str, Path] = {}
        """Where the old checkpoints are of the nodes that started over."""
        self._state_store = app.state if isinstance(app, App) else StateStore.ROCKSDB
        self._spark = spark
        self._owns_spark = spark is None
        self._cluster: Cluster | None = None
        self._runs: list[NodeRun] = []
        self._stop_asked = Event()
        self._ended = Event()
        self._watcher = Thread(target=self._watch, name="headrace progress", daemon=True)

    def start(self, jars: Progress | None = None, over: Mapping[str, Offsets | None] | None = None) -> None:
        """Check everything that can be checked, and only then start the queries. `jars` is told of fetched jars.

        The nodes in `over` start over, from the offsets given there or from the beginning.
        """
        over = over or {}
        cluster = self._cluster = Cluster(self.config)
        cluster_id = cluster.id()
        ensure_inputs(self.topology, cluster, self.config)
        going_on = [query.name for query in self.topology.queries if query.name not in over]
        starts = self.checkpoints.starting_offsets(going_on) | {name: start for name, start in over.items() if start}
        config = replace(self.config, starting_offsets=starts)
        try:
            planned = self._plan(config, jars)
            ensure_outputs(self.topology, cluster, config, {query.node: query.late_topic for query in planned})
            ensure_markers((marked.topic for query in planned for marked in query.marked), cluster, config)
            self._check_checkpoints([query for query in planned if query.node.name not in over], cluster_id)
            for name, start in over.items():
                if kept := self.checkpoints.reset(name, start):
                    self.kept[name] = kept
            for query in planned:
                checkpoint = self.checkpoints.of(query.node.name)
                checkpoint.open(query.fingerprint)
                self._note_cluster(query, checkpoint, cluster_id)
                self._runs.append(self._run_of(query, checkpoint, config, cluster))
            for run in self._runs:
                run.open()
            for run in self._runs:
                run.start(self._before(run), cluster)
        except BaseException:
            self.stop()
            raise
        self._watcher.start()

    def wait(self) -> int:
        """Until a signal, `request_stop` or a node that failed for good; then stop, and return the exit code."""
        with self._signals():
            while not self._stop_asked.wait(POLL):
                self.failure = next((run.failure for run in self._runs if run.failure is not None), None)
                if self.failure is not None:
                    break
            self.stop()
        return 0 if self.failure is None else 1

    def request_stop(self) -> None:
        """Ask `wait` to stop the run. Safe in a signal's handler."""
        self._stop_asked.set()

    def stop(self) -> None:
        """Finish the batches that are being written, and end."""
        self._stop_asked.set()
        if self._ended.is_set():
            return
        self._ended.set()
        for run in self._runs:
            run.request_stop()
        for run in self._runs:
            run.stop()
        if self._watcher.is_alive() and current_thread() is not self._watcher:
            self._watcher.join(PROGRESS_EVERY * 10)
        if self._owns_spark and self._spark is not None:
            try:
                self._spark.stop()
            except Exception:
                pass  # its process has ended already
            self._spark = None

    def process_all_available(self, node: str | None = None) -> None:
        """Process all that the topics hold, and what comes of it, node by node down the graph; or at one node alone."""
        for run in self._runs:
            if node in (None, run.node.name):
                run.settle()

    def output_schemas(self) -> dict[str, Schema]:
        """What the rows of a node have, by the name of the node or channel, as Spark analysed it."""
        return {
            f"{run.node.name}.{channel}" if channel else run.node.name: schema
            for run in self._runs
            for channel, schema in run.output_schemas.items()
        }

    def lateness(self) -> dict[str, Duration]:
        """How far the watermark stays behind the newest event of each topic whose time markers move on."""
        return {marked.topic: marked.lateness for run in self._runs for marked in run.marked}

    def progress(self) -> list[NodeProgress]:
        """Every node, in the order of the graph."""
        return [run.progress() for run in self._runs]

    def _plan(self, config: RunConfig, jars: Progress | None) -> "list[PlannedQuery]":
        from headrace.engine.plan import plan
        from headrace.engine.running import prepare_session

        if self._spark is None:
            self._spark = start_session(
                self.topology.app_name,
                home=config.home,
                master=config.spark or self._local_master(config),
                state=self._state_store,
                partitions=config.state_partitions,
                settings=config.spark_settings,
                progress=jars,
            )
        prepare_session(self._spark)
        return plan(self.topology, self._spark, config)

    def _local_master(self, config: RunConfig) -> str:
        """All cores; where real-time nodes hold on to tasks for ever, as many more threads."""
        assert self._cluster is not None
        held = real_time_slots(self.topology, self._cluster, config)
        return LOCAL if not held else LOCAL.replace("*", str((os.cpu_count() or 1) + held))

    def _run_of(
        self, planned: "PlannedQuery", checkpoint: Checkpoint, config: RunConfig, cluster: Cluster
    ) -> "NodeRun":
        from headrace.engine.running import NodeRun
        from headrace.engine.sinks.topics import Sink, topic_sink
        from headrace.engine.sinks.views import view_sink

        node, prefix = planned.node, self.topology.prefix
        sink: Sink | None = None
        if isinstance(node, View):
            sink = view_sink(node, planned, config, cluster, checkpoint, prefix)
        elif not (isinstance(node, Stream) and node.latency is Latency.REAL_TIME):
            on_cluster = not runs_here(planned.frame.sparkSession)
            sink = topic_sink(node, config, cluster, checkpoint, prefix, by_tasks=on_cluster)
        return NodeRun(planned, sink, checkpoint, config, read_topics(self.topology, node))

    def _before(self, run: "NodeRun") -> "list[NodeRun]":
        """The nodes that make the tables a node's events are looked up in, upstreams first."""
        makers, left = set(), [*run.looked_up]
        while left:
            node = left.pop()
            if node not in makers:
                makers.add(node)
                upstreams = (node_of(feed) for feed in self.topology.feeds(node))
                left += [upstream for upstream in upstreams if isinstance(upstream, QueryNode)]
        return [other for other in self._runs if other.node in makers]

    def _check_checkpoints(self, planned: "list[PlannedQuery]", cluster_id: str) -> None:
        """Whether all fit, so that none is set aside or moved on for a run that another one prevents."""
        misfits: dict[str, CheckpointError] = {}
        for query in planned:
            checkpoint = self.checkpoints.of(query.node.name)
            try:
                checkpoint.check(query.fingerprint)
                self._check_cluster(query, checkpoint, cluster_id)
            except CheckpointError as error:
                misfits[query.node.name] = error
        if len(misfits) == 1:
            raise next(iter(misfits.values()))
        if misfits:
            resets = " ".join(f"--reset {name}" for name in misfits)
            raise CheckpointError(
                "\n".join(error.problem for error in misfits.values()),
                next_step=f"undo the changes, or start over by adding {resets} (the old checkpoints are kept)",
            )

    def _check_cluster(self, planned: "PlannedQuery", checkpoint: Checkpoint, cluster_id: str) -> None:
        """The offsets of one cluster mean nothing on another, nor those of a topic on one of the same name."""
        topics = read_topics(self.topology, planned.node)
        if not topics:
            return
        assert self._cluster is not None
        node, noted = checkpoint.node, checkpoint.note
        if noted.cluster is not None and noted.cluster != cluster_id:
            raise CheckpointError(
                f"the checkpoint of {node!r} at {checkpoint.folder} was made with the Kafka cluster "
                f"{noted.cluster}, and the one at {self.config.kafka_address} is {cluster_id}",
                next_step=f"name the right cluster with --kafka, or start over with --reset {node}",
            )
        ids = self._cluster.topic_ids(topics)
        if others := [topic for topic, id in ids.items() if noted.topics.get(topic, id) != id]:
            raise CheckpointError(
                f"topic {others[0]!r} was deleted and made again since {node!r} read it: the offsets in its checkpoint "
                f"at {checkpoint.folder} are those of the old one",
                next_step=f"start over with the records that are there: --reset {node}, or with those since a time: "
                f"--replay {node}:{others[0]}=TIME",
            )

    def _note_cluster(self, planned: "PlannedQuery", checkpoint: Checkpoint, cluster_id: str) -> None:
        if topics := read_topics(self.topology, planned.node):
            assert self._cluster is not None
            known = {**checkpoint.note.topics, **self._cluster.topic_ids(topics)}
            checkpoint.take_note(cluster=cluster_id, topics=known)

    def _watch(self) -> None:
        """Count what passes, and ask how far the topics reach, whether or not anybody looks."""
        from headrace.engine.sinks.marking import MarkerWriter

        topics = {topic for run in self._runs for topic in run.tracker.topics}
        # In tests, time moves when it is told to, and not otherwise.
        heartbeats = Heartbeats([] if self.config.markers else self._runs)
        markers = MarkerWriter(self.config, self.topology.app_name)
        while not self._ended.is_set():
            began = time.monotonic()
            now, watermarks = datetime.now(UTC), heartbeats.watermarks()
            try:
                ends = self._cluster.ends(topics) if self._cluster is not None else {}
            except KafkaError:
                ends = {}
            for run in self._runs:
                run.tracker.ends_are(ends)
                try:
                    run.progress()
                except Exception:
                    pass  # Spark has gone, or is going: the run itself notices
            markers.write(heartbeats, heartbeats.beat(now, watermarks, ends))
            self._ended.wait(max(0.05, PROGRESS_EVERY - (time.monotonic() - began)))
        markers.close()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and Ctrl-C finish the batch and stop. Python hands signals to the main thread alone."""
        if current_thread() is not main_thread():
            yield
            return

        def on_signal(_: int, __: FrameType | None) -> None:
            self.request_stop()

        before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
