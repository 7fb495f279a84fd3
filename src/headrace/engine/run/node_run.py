"""One node while the app runs: its query is watched, and restarted after a failure as long as that may help."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from signal import Signals
from subprocess import Popen, TimeoutExpired
from threading import Event, Lock

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.config.cluster import Cluster
from headrace.config.run import Offsets, RunConfig
from headrace.engine.plan.planner import PlannedQuery
from headrace.engine.run.checkpoints import Checkpoint
from headrace.engine.run.failures import advice_on, cause_of, is_away
from headrace.engine.run.heartbeats import MarkedTopic
from headrace.engine.run.progress import NodeProgress, NodeState, Tracker
from headrace.engine.spark_private.process import java_process
from headrace.engine.spark_private.reports import Py4JError
from headrace.engine.write.batch import Batch, Division
from headrace.engine.write.sink import BatchSink
from headrace.engine.write.topics import records_of
from headrace.errors import CheckpointError, EngineError, FunctionFailed, KafkaError, NodeFailed, ViewChanged
from headrace.threads import Threads
from headrace.topology import Duration, QueryNode, Schema

__all__ = ["NodeRun", "SparkEnded", "cause_of", "java_process", "prepare_session", "spark_ended"]

POLL = 0.1
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0
BATCH_LIMIT = 300.0
"""How many seconds a stop waits for the batch that is being written."""
IDLE_LIMIT = 10.0
EXIT_LIMIT = 5.0
EMPTY_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"
# Retrying does not help: a session cannot be replaced under the other queries, nor can a checkpoint that does not fit.
HOPELESS = (EngineError, ViewChanged)


_starting = Lock()


class Stopping(Exception):
    """Raised where the next batch would begin, so that a query ends between two."""


class SparkEnded(EngineError):
    """The Java process of Spark has ended under the run. A new process can resume from the checkpoints."""


class NodeRun:
    """A node's query. After `open` and `start`, a thread of its own watches and restarts it."""

    def __init__(
        self,
        planned: PlannedQuery,
        sink: BatchSink | None,
        checkpoint: Checkpoint,
        config: RunConfig,
        topics: list[str],
        threads: Threads,
    ) -> None:
        """Without a sink, Spark's own real-time sink writes the rows."""
        self.node = planned.node
        self.checkpoint = checkpoint
        self.tracker = Tracker(self.node.name, self.node.kind, topics, checkpoint.positions())
        self._empty_batches = planned.can_fall_due or config.markers or sink is None
        committed = checkpoint.committed_batch()
        known = checkpoint.watermark(committed) if self._empty_batches else checkpoint.watermark_after(committed)
        self.tracker.restore(known, checkpoint.progress_note())
        self.failure: NodeFailed | None = None
        self._planned = planned
        self._sink = sink
        self._config = config
        self._state = NodeState.STARTING
        self._errors = 0
        self._last_error: str | None = None
        self._failures = 0
        self._failing_since = 0.0
        self._committed_then: int | None = None
        self._query: StreamingQuery | None = None
        self._query_known = Event()
        self._sink_error: BaseException | None = None
        self._division: Division | None = None
        self._stopping = Event()
        self._writing = Lock()
        self._before: list[tuple[NodeRun, Cluster]] = []
        self._threads = threads
        self._thread = threads.new(self.node.name, self._look_after)

    def open(self) -> None:
        """Connect to the sink. An error of the sink or the checkpoint is raised here, before anything runs."""
        if self._sink is not None:
            self._sink.open()

    def start(self, before: "Sequence[NodeRun]", cluster: Cluster) -> None:
        """Start the query, after the nodes in `before`, which write the tables it looks events up in, have caught up.

        A table is read whole before the first event, also if the app itself writes it.
        """
        self._before = [(run, cluster) for run in before]
        if not before:
            self._start_query()
        self._thread.start()

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def looked_up(self) -> tuple[QueryNode, ...]:
        return self._planned.looked_up

    @property
    def marked(self) -> tuple[MarkedTopic, ...]:
        return self._planned.marked

    @property
    def behind_watermark(self) -> Duration | None:
        return self._planned.behind_watermark

    @property
    def watermark(self) -> datetime | None:
        return self.tracker.watermark

    @property
    def newest(self) -> datetime | None:
        return self.tracker.newest

    def position(self, topic: str) -> dict[int, int]:
        return self.tracker.position(topic)

    @property
    def output_schemas(self) -> Mapping[str, Schema]:
        return self._planned.output_schemas

    @property
    def state(self) -> NodeState:
        return self._state

    def progress(self) -> NodeProgress:
        if (query := self._query) is not None:
            try:
                before = self.tracker.last_batch
                self.tracker.read(query)
                if not self._empty_batches and self.tracker.last_batch != before:
                    # Spark would report it with the empty batch, and only the nodes that read this one wait for it.
                    self.tracker.watermark_is(self.checkpoint.watermark_after(self.tracker.last_batch))
            except (Py4JError, OSError, CheckpointError):
                pass  # Spark has ended or is ending: the thread of the node reports it
        division = self._division
        activity = str(division) if division is not None and division.records else None
        return self.tracker.shown(self._state, self._errors, self._last_error, activity)

    def note_progress(self) -> None:
        """Keep beside the checkpoint what a restarted run shows until its first batch."""
        if (sizes := self.tracker.state_sizes()) is not None:
            self.checkpoint.note_progress(sizes)

    def settle(self) -> None:
        """Return once all records in its topics have been processed; raises if the run has failed."""
        while True:
            self._threads.check()
            if self.failure is not None:
                raise self.failure
            if self._stopping.is_set():
                return
            query = self._query
            if query is not None and self._state is NodeState.RUNNING:
                try:
                    self._await_idle(query)
                    if query.isActive:
                        return
                except (StreamingQueryException, Py4JError, OSError):
                    pass  # the thread of the node reports it
            time.sleep(POLL)

    def _await_idle(self, query: StreamingQuery) -> None:
        if self._sink is not None:
            query.processAllAvailable()
            return
        # In real-time mode Spark does not report that it is idle. One batch is running; the next one starts after now:
        # once that has finished, all records of now have been read.
        self.tracker.read(query)
        begun = self.tracker.last_batch or 0
        while query.isActive and (self.tracker.last_batch or 0) < begun + 2:
            time.sleep(POLL)
            self.tracker.read(query)

    def request_stop(self) -> None:
        self._stopping.set()

    def stop(self, reason: str | None = None) -> None:
        """Let the batch that is being written finish, then stop the query. The reason is shown as the last error."""
        self._stopping.set()
        if self._sink is not None and self._writing.acquire(timeout=BATCH_LIMIT):
            self._writing.release()
        if (query := self._query) is not None:
            try:
                self._end(query)
            except Exception as error:  # it did not stop in time, or Spark has ended: it ends with the process
                self._last_error = cause_of(error)
        if self._thread.is_alive():
            self._thread.join(IDLE_LIMIT)
        if self._sink is not None:
            self._sink.close()
        self.note_progress()
        self._last_error = reason or self._last_error
        if self._state is not NodeState.FAILED:
            self._state = NodeState.STOPPED

    def _end(self, query: StreamingQuery) -> None:
        deadline = time.monotonic() + IDLE_LIMIT
        # Spark still has to commit the batch; the next one would stop at once.
        while self._sink is not None and query.isActive and time.monotonic() < deadline:
            if not query.status["isTriggerActive"]:
                break
            time.sleep(0.02)
        query.stop()

    def _start_query(self) -> None:
        planned = self._planned
        self._sink_error = None
        self._query_known.clear()
        frame = planned.frame if self._sink is not None else records_of(planned.frame)
        writer = (
            frame.writeStream.queryName(f"{self.node.app_name}.{self.node.name}")
            .outputMode(planned.output_mode)
            .option("checkpointLocation", str(self.checkpoint.spark))
        )
        if self._sink is not None:
            writer = writer.foreachBatch(self._write)
        else:
            writer = writer.format("kafka").options(**self._config.connector_options())
            # PySpark's type hints do not have it.
            interval = str(self._config.real_time_interval)
            writer = writer.trigger(realTime=interval)  # type: ignore[call-overload]
        with self._settings_of_the_query(frame.sparkSession):
            self._query = writer.start()
        self._query_known.set()
        self._state = NodeState.RUNNING

    @contextmanager
    def _settings_of_the_query(self, spark: SparkSession) -> Iterator[None]:
        """A query has the settings that its session has when it starts; other queries of the session have theirs."""
        if EMPTY_BATCHES in self._config.spark_settings:
            yield
            return
        with _starting:
            before = str(spark.conf.get(EMPTY_BATCHES))
            spark.conf.set(EMPTY_BATCHES, str(self._empty_batches).lower())
            try:
                yield
            finally:
                spark.conf.set(EMPTY_BATCHES, before)

    def _write(self, frame: DataFrame, number: int) -> None:
        """Called by Spark for every batch."""
        self._query_known.wait()
        assert self._sink is not None
        assert self._query is not None
        with self._writing:
            if self._stopping.is_set():
                raise Stopping
            try:
                batch = Batch(number, frame, self._planned, self.checkpoint, self._query)
                self._division = batch.division
                self._sink.write(batch)
                self.tracker.add_failed(batch.division.failed)
            except BaseException as error:
                self._sink_error = error
                raise
            finally:
                self._division = None

    def _look_after(self) -> None:
        error = self._start_after_others()
        while True:
            while error is not None and not self._stopping.is_set():
                if not self._may_try_again(error):
                    return
                error = self._try_again()
            if self._stopping.wait(POLL):
                return
            error = self._error()

    def _start_after_others(self) -> BaseException | None:
        for other, cluster in self._before:
            other._await_caught_up(cluster, self._stopping)
        return self._try_again() if self._before and not self._stopping.is_set() else None

    def _await_caught_up(self, cluster: Cluster, stopping: Event) -> None:
        """Wait until it has processed all records that are in its topics now."""
        wanted: Offsets | None = None
        while not stopping.is_set():
            try:
                wanted = wanted or cluster.filled(self.tracker.topics)
                if all(
                    self.position(topic).get(partition, 0) >= end
                    for topic, partitions in wanted.items()
                    for partition, end in partitions.items()
                ):
                    return
            except KafkaError:
                pass  # Kafka is unavailable: ask again
            stopping.wait(POLL)

    def _error(self) -> BaseException | None:
        """Why the query ended; None while it runs."""
        query = self._query
        try:
            if query is not None and query.isActive:
                return None
            ended = None if query is None else query.exception()
        except (Py4JError, OSError) as error:
            raise _ended(java_process(self._planned.frame.sparkSession)) from error
        return self._sink_error or ended or RuntimeError("the query ended by itself")

    def _may_try_again(self, error: BaseException) -> bool:
        """Record a failure and wait before the next attempt; False if there is none."""
        now, committed = time.monotonic(), self.checkpoint.committed_batch()
        if self._failures == 0 or committed != self._committed_then:
            self._failures, self._failing_since = 0, now
        self._committed_then = committed
        self._failures += 1
        self._errors += 1
        self._last_error = cause_of(error)
        if is_away(error):
            gives_up = now - self._failing_since > self._config.patience.microseconds / 1e6
        else:
            hopeless = error.certain if isinstance(error, FunctionFailed) else isinstance(error, HOPELESS)
            gives_up = hopeless or self._failures >= self._config.attempts
        if gives_up:
            cause, advice = advice_on(error, self.node.name, self.checkpoint.folder)
            self.failure = NodeFailed(
                self.node.name, self.checkpoint.last_batch(), cause, next_step=advice, attempts=self._failures
            )
            self.failure.__cause__ = error
            self._state = NodeState.FAILED
            return False
        self._state = NodeState.RESTARTING
        return not self._stopping.wait(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (self._failures - 1)))

    def _try_again(self) -> BaseException | None:
        try:
            if self._sink is not None:
                self._sink.open()
            self._start_query()
        except Exception as error:
            if (ended := spark_ended(self._planned.frame.sparkSession)) is not None:
                raise ended from error
            return error
        return None


def prepare_session(spark: SparkSession) -> None:
    """The settings that the queries of a run need, whoever started the session."""
    spark.conf.set("spark.sql.streaming.stopTimeout", "30s")
    # If a plan has the same part twice, Spark reuses the shuffle of the first, and then does not see the watermark
    # of the second: the operator above it would wait for ever.
    spark.conf.set("spark.sql.exchange.reuse", "false")


def spark_ended(spark: SparkSession) -> SparkEnded | None:
    """The error to raise if the Java process of a session has ended; None while it runs."""
    java = java_process(spark)
    return None if java is None or java.poll() is None else _ended(java)


def _ended(java: "Popen[bytes] | None") -> SparkEnded:
    how = "has ended"
    if java is not None:
        try:
            code = java.wait(EXIT_LIMIT)
            how = f"was killed by {Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        except (TimeoutExpired, ValueError):
            pass
    return SparkEnded(
        f"the Java process of Spark {how}", next_step="restart the app; processing resumes from its checkpoints"
    )
