"""A topology that runs: one query per node, until it is stopped, a node fails for good, or Spark or a thread dies."""

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, current_thread, main_thread
from types import FrameType
from typing import TYPE_CHECKING

from headrace.config.cluster import Cluster
from headrace.config.run import Offsets, RunConfig
from headrace.engine.adapters import sink_adapter
from headrace.engine.run.checkpoints import Checkpoint, Checkpoints
from headrace.engine.run.heartbeats import Heartbeats
from headrace.engine.run.jars import Progress
from headrace.engine.run.progress import NodeProgress, NodeState
from headrace.engine.run.session import LOCAL, runs_here, start_session
from headrace.engine.run.spark_log import spark_log_path
from headrace.engine.run.topics import ensure_inputs, ensure_markers, ensure_outputs, read_topics, real_time_slots
from headrace.errors import CheckpointError, Error, KafkaError, NodeFailed
from headrace.threads import Threads
from headrace.topology import (
    App,
    Duration,
    Schema,
    Topology,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.engine.plan.planner import PlannedQuery
    from headrace.engine.run.node_run import NodeRun

__all__ = ["Runner"]

POLL = 0.2
PROGRESS_EVERY = 1.0


class Runner:
    """Runs an app. The addresses in `config` must be those of services that are up.

    A session that is given is left running; one that is started here ends with the run. With `keep_going`, a node that
    fails for good stops only itself and the nodes that depend on it.
    """

    def __init__(
        self,
        app: App | Topology,
        config: RunConfig,
        spark: "SparkSession | None" = None,
        *,
        keep_going: bool = False,
        threads: Threads | None = None,
    ) -> None:
        self.topology = app.topology() if isinstance(app, App) else app
        self.config = config
        self.checkpoints = Checkpoints(config.home, self.topology.app_name)
        self.failure: Error | None = None
        """Why the run ended, or will end: a node that failed for good, Spark, or a thread of ours that died."""
        self.threads = threads or Threads(spark_log_path(config.home))
        self.kept: dict[str, Path] = {}
        """By node that started over, where its old checkpoint is."""
        self.cluster_id = ""
        self._keep_going = keep_going
        self._spark = spark
        self._owns_spark = spark is None
        self._cluster: Cluster | None = None
        self._runs: list[NodeRun] = []
        self._stop_asked = False
        self._ended = Event()
        self._watcher = self.threads.new("progress", self._watch)

    def start(self, jars: Progress | None = None, restarted: Mapping[str, Offsets | None] | None = None) -> None:
        """Check everything that can be checked, then start the queries. `jars` is called for each jar that is fetched.

        The nodes in `restarted` start over, from the offsets given there or from the beginning.
        """
        restarted = restarted or {}
        cluster = self._cluster = Cluster(self.config)
        cluster_id = self.cluster_id = cluster.id()
        ensure_inputs(self.topology, cluster, self.config)
        if not self.topology.queries:
            self._watcher.start()  # what the app has beside its nodes needs no Spark
            return
        going_on = [query.name for query in self.topology.queries if query.name not in restarted]
        starts = self.checkpoints.starting_offsets(going_on) | {
            name: start for name, start in restarted.items() if start
        }
        config = replace(self.config, starting_offsets=starts)
        try:
            planned = self._plan(config, jars)
            ensure_outputs(self.topology, cluster, config, {query.node: query.late_topic for query in planned})
            ensure_markers((marked.topic for query in planned for marked in query.marked), cluster, config)
            self._check_checkpoints([query for query in planned if query.node.name not in restarted], cluster_id)
            for name, start in restarted.items():
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
        """Wait for a signal, `request_stop` or a failure; then stop, and return the exit code."""
        with self._signals():
            while not self._stop_asked and not self._has_failed():
                time.sleep(POLL)
            self.stop()
        return 0 if self.failure is None else 1

    @property
    def failures(self) -> list[Error]:
        """`failure`, and those of other nodes that failed for good."""
        nodes = [run.failure for run in self._runs if run.failure is not None]
        first = [] if self.failure is None else [self.failure]
        return first + [
            one for one in nodes if not isinstance(self.failure, NodeFailed) or one.node != self.failure.node
        ]

    @property
    def java_pid(self) -> int | None:
        """The Java process of Spark, if this process started it."""
        from headrace.engine.run.node_run import java_process

        java = None if self._spark is None else java_process(self._spark)
        return None if java is None else java.pid

    def check(self) -> None:
        """Raise the failure that ends the run, if there is one."""
        if self._has_failed():
            assert self.failure is not None
            raise self.failure

    def request_stop(self) -> None:
        """Ask `wait` to stop the run."""
        # Called in a signal's handler, also while an earlier call is under way: an Event would wait for its own lock.
        self._stop_asked = True

    def stop(self) -> None:
        """Finish the batches that are being written, and stop."""
        self._stop_asked = True
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
        """Process all records in the topics and their results, node by node down the graph; or at one node alone."""
        for run in self._runs:
            if node in (None, run.node.name):
                try:
                    run.settle()
                except NodeFailed as failure:
                    raise self._explained(failure) from failure.__cause__

    def output_schemas(self) -> dict[str, Schema]:
        """The schema of the rows of each node or channel, as Spark analysed it."""
        return {
            f"{run.node.name}.{channel}" if channel else run.node.name: schema
            for run in self._runs
            for channel, schema in run.output_schemas.items()
        }

    def lateness(self) -> dict[str, Duration]:
        """By topic with markers, how far its watermark trails the newest event."""
        return {marked.topic: marked.lateness for run in self._runs for marked in run.marked}

    def progress(self) -> list[NodeProgress]:
        """Every node, in the order of the graph."""
        return [run.progress() for run in self._runs]

    def _plan(self, config: RunConfig, jars: Progress | None) -> "list[PlannedQuery]":
        from headrace.engine.plan.planner import plan_topology
        from headrace.engine.run.node_run import prepare_session

        if self._spark is None:
            self._spark = start_session(
                self.topology.app_name,
                home=config.home,
                master=config.spark or self._local_master(config),
                state=self.topology.state,
                partitions=config.state_partitions,
                settings=config.spark_settings,
                progress=jars,
            )
        prepare_session(self._spark)
        return plan_topology(self.topology, self._spark, config)

    def _local_master(self, config: RunConfig) -> str:
        """All cores, and a thread more for each task that a real-time node occupies all the time."""
        assert self._cluster is not None
        held = real_time_slots(self.topology, self._cluster, config)
        return LOCAL if not held else LOCAL.replace("*", str((os.cpu_count() or 1) + held))

    def _run_of(
        self, planned: "PlannedQuery", checkpoint: Checkpoint, config: RunConfig, cluster: Cluster
    ) -> "NodeRun":
        from headrace.engine.run.node_run import NodeRun
        from headrace.engine.write.sink import BatchSink, SinkContext

        node = planned.node
        sink: BatchSink | None = None
        if not node.is_real_time:
            by_tasks = not runs_here(planned.frame.sparkSession)
            context = SinkContext(planned, config, cluster, checkpoint, self.topology.prefix, by_tasks)
            sink = sink_adapter(node.sink).sink(context)
        return NodeRun(planned, sink, checkpoint, config, read_topics(self.topology, node), self.threads)

    def _has_failed(self) -> bool:
        """Whether the run has to end. With `keep_going`, a failed node ends it only if no node is left to run."""
        if self.threads.failure is not None:
            self.failure = self._spark_ended() or self.threads.failure
            return True
        failed = [run for run in self._runs if run.failure is not None]
        for run in failed:
            assert run.failure is not None
            self.failure = self.failure or self._explained(run.failure)
            if self._keep_going:
                for other in self._dependents(run):
                    if other.state not in (NodeState.FAILED, NodeState.STOPPED):
                        other.stop(f"stopped because it depends on {run.name!r}, which failed")
        ended = (NodeState.FAILED, NodeState.STOPPED)
        return bool(failed) and (not self._keep_going or all(run.state in ended for run in self._runs))

    def _spark_ended(self) -> Error | None:
        """A thread may notice the end of Java by an error of any kind; this names the cause."""
        from headrace.engine.run.node_run import spark_ended

        return None if self._spark is None else spark_ended(self._spark)

    def _dependents(self, run: "NodeRun") -> "list[NodeRun]":
        """The nodes that read what a node writes, directly or through others."""
        found, left = {run.node}, True
        while left:
            left = False
            for other in self._runs:
                upstreams = {feed.node for feed in self.topology.feeds(other.node)}
                if other.node not in found and upstreams & found:
                    found.add(other.node)
                    left = True
        return [other for other in self._runs if other is not run and other.node in found]

    def _explained(self, failure: NodeFailed) -> NodeFailed:
        """Where a topic was deleted under its readers, name it and all of them: each would fail in turn."""
        gone = self._deleted_topics()
        readers = [run for run in self._runs if gone & set(run.tracker.topics)]
        failed = next((run for run in readers if run.name == failure.node), None)
        if failed is None:
            return failure
        names = ", ".join(repr(topic) for topic in sorted(gone & set(failed.tracker.topics)))
        resets = " ".join(f"--reset {run.name}" for run in readers)
        explained = NodeFailed(
            failure.node,
            failure.batch,
            f"topic {names} was deleted while the app read it",
            next_step=f"restart the app with {resets}: these nodes then read the new topic from its "
            "beginning. What the deleted records gave cannot be rebuilt: a view that is reset is emptied",
            attempts=failure.attempts,
        )
        explained.__cause__ = failure.__cause__
        return explained

    def _deleted_topics(self) -> set[str]:
        """The topics of the run that are missing, or have been created again under the same name."""
        noted = {topic: id for run in self._runs for topic, id in run.checkpoint.note.topics.items()}
        try:
            assert self._cluster is not None
            known = self._cluster.partitions(noted)
            ids = self._cluster.topic_ids(known)
        except KafkaError:
            return set()
        return {topic for topic, id in noted.items() if topic not in known or ids.get(topic, id) != id}

    def _before(self, run: "NodeRun") -> "list[NodeRun]":
        """The nodes that write the tables in which a node looks up its events, upstreams first."""
        makers, left = set(), [*run.looked_up]
        while left:
            node = left.pop()
            if node not in makers:
                makers.add(node)
                upstreams = {feed.node for feed in self.topology.feeds(node)}
                left += [query for query in self.topology.queries if query in upstreams]
        return [other for other in self._runs if other.node in makers]

    def _check_checkpoints(self, planned: "list[PlannedQuery]", cluster_id: str) -> None:
        """Check all before any is changed: a run that one of them prevents must not set another aside."""
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
                "; ".join(error.problem for error in misfits.values()),
                next_step=f"start over by adding {resets} (the old checkpoints are kept), or undo what was changed",
            )

    def _check_cluster(self, planned: "PlannedQuery", checkpoint: Checkpoint, cluster_id: str) -> None:
        """Offsets are valid only for the cluster, and for the topic, that they were read from."""
        topics = read_topics(self.topology, planned.node)
        if not topics:
            return
        assert self._cluster is not None
        node, noted = checkpoint.node, checkpoint.note
        if noted.cluster is not None and noted.cluster != cluster_id:
            raise CheckpointError(
                f"the checkpoint of {node!r} at {checkpoint.folder} belongs to the Kafka cluster "
                f"{noted.cluster}, but the one at {self.config.kafka_address} is {cluster_id}",
                next_step=f"give the address of that cluster with --kafka, or start over with --reset {node}",
            )
        ids = self._cluster.topic_ids(topics)
        if others := [topic for topic, id in ids.items() if noted.topics.get(topic, id) != id]:
            raise CheckpointError(
                f"topic {others[0]!r} was deleted and created again since {node!r} read it: the checkpoint at "
                f"{checkpoint.folder} has the offsets of the old topic",
                next_step=f"start over from the beginning of the new topic with --reset {node}, or from a time with "
                f"--replay {node}:{others[0]}=TIME. What the deleted records gave cannot be rebuilt: a view that is "
                "reset is emptied",
            )

    def _note_cluster(self, planned: "PlannedQuery", checkpoint: Checkpoint, cluster_id: str) -> None:
        if topics := read_topics(self.topology, planned.node):
            assert self._cluster is not None
            known = {**checkpoint.note.topics, **self._cluster.topic_ids(topics)}
            checkpoint.take_note(cluster=cluster_id, topics=known)

    def _watch(self) -> None:
        """Count rows and ask for the ends of the topics every second, and write markers."""
        from headrace.engine.write.markers import MarkerWriter

        topics = {topic for run in self._runs for topic in run.tracker.topics}
        # In tests, only the test moves the time.
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
                run.progress()
                run.note_progress()
            markers.write(heartbeats, heartbeats.beat(now, watermarks, ends))
            self._ended.wait(max(0.05, PROGRESS_EVERY - (time.monotonic() - began)))
        markers.close()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and Ctrl-C finish the batch and stop. Python delivers signals to the main thread only."""
        if current_thread() is not main_thread():
            yield
            return

        def on_signal(_: int, __: FrameType | None) -> None:
            self.request_stop()

        # A signal that is ignored stays ignored, as under nohup.
        numbers = [n for n in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(n) is not signal.SIG_IGN]
        before = {number: signal.signal(number, on_signal) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
