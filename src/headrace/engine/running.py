"""One node while the app runs: its query, watched, and started again as long as there is hope."""

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from threading import Event, Lock, Thread

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.engine.causes import advice_on, cause_of, is_away
from headrace.engine.checkpoints import Checkpoint
from headrace.engine.cluster import Cluster
from headrace.engine.config import Offsets, RunConfig
from headrace.engine.heartbeats import MarkedTopic
from headrace.engine.plan import PlannedQuery
from headrace.engine.progress import NodeProgress, NodeState, Tracker
from headrace.engine.sinks.batch import Batch
from headrace.engine.sinks.topics import Sink, records_of
from headrace.errors import EngineError, FunctionFailed, KafkaError, NodeFailed, ViewChanged
from headrace.topology import Duration, QueryNode, Schema

__all__ = ["NodeRun", "cause_of", "prepare_session"]

POLL = 0.1
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0
BATCH_LIMIT = 300.0
"""How long a stop waits for the batch that is being written."""
IDLE_LIMIT = 10.0
# A session cannot be made anew under the queries of others, nor a checkpoint that does not fit.
HOPELESS = (EngineError, ViewChanged)


class Stopping(Exception):
    """Raised where the next batch would begin, so that a query ends between two."""


class NodeRun:
    """A node's query. `open` and `start` it; then it looks after itself, in a thread of its own."""

    def __init__(
        self, planned: PlannedQuery, sink: Sink | None, checkpoint: Checkpoint, config: RunConfig, topics: list[str]
    ) -> None:
        """Without a sink, Spark's own real-time sink writes the rows."""
        self.node = planned.node
        self.checkpoint = checkpoint
        self.tracker = Tracker(self.node.name, self.node.kind, topics, checkpoint.positions())
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
        self._stopping = Event()
        self._writing = Lock()
        self._before: list[tuple[NodeRun, Cluster]] = []
        self._thread = Thread(target=self._look_after, name=f"headrace {self.node.name}", daemon=True)

    def open(self) -> None:
        """Connect to the sink. What is wrong with it, or with the checkpoint, is raised here before anything runs."""
        if self._sink is not None:
            self._sink.open()

    def start(self, before: "Sequence[NodeRun]", cluster: Cluster) -> None:
        """Start the query, once those that make the tables it looks events up in have caught up, upstreams first.

        A table that others write to is read whole before the first event: so is one that has yet to be made.
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
    def held(self) -> Duration | None:
        return self._planned.held

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
                self.tracker.read(query)
            except (Py4JError, OSError):
                pass  # Spark has gone, or is going: whoever looks after the query says so
        return self.tracker.shown(self._state, self._errors, self._last_error)

    def settle(self) -> None:
        """Return once all that its topics held has been processed; raises if the node has failed for good."""
        while True:
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
                    pass  # whoever looks after the query notices as well
            time.sleep(POLL)

    def _await_idle(self, query: StreamingQuery) -> None:
        if self._sink is not None:
            query.processAllAvailable()
            return
        # In real-time mode Spark does not say when it has nothing to do. One batch is under way; the next begins after
        # now, so that once it is over all that was there has been read.
        self.tracker.read(query)
        begun = self.tracker.last_batch or 0
        while query.isActive and (self.tracker.last_batch or 0) < begun + 2:
            time.sleep(POLL)
            self.tracker.read(query)

    def request_stop(self) -> None:
        self._stopping.set()

    def stop(self) -> None:
        """Let the batch that is being written finish, then end the query."""
        self._stopping.set()
        if self._sink is not None and self._writing.acquire(timeout=BATCH_LIMIT):
            self._writing.release()
        if (query := self._query) is not None:
            try:
                self._end(query)
            except Exception as error:  # it did not end in time, or Spark has gone: the process takes it along
                self._last_error = cause_of(error)
        if self._thread.is_alive():
            self._thread.join(IDLE_LIMIT)
        if self._sink is not None:
            self._sink.close()
        if self._state is not NodeState.FAILED:
            self._state = NodeState.STOPPED

    def _end(self, query: StreamingQuery) -> None:
        deadline = time.monotonic() + IDLE_LIMIT
        # Spark has yet to note that the batch is done; a next one would end at once.
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
            # PySpark's own types have not heard of it.
            interval = str(self._config.real_time_interval)
            writer = writer.trigger(realTime=interval)  # type: ignore[call-overload]
        self._query = writer.start()
        self._query_known.set()
        self._state = NodeState.RUNNING

    def _write(self, frame: DataFrame, number: int) -> None:
        """What Spark calls for every batch."""
        self._query_known.wait()
        assert self._sink is not None
        assert self._query is not None
        with self._writing:
            if self._stopping.is_set():
                raise Stopping
            try:
                self._sink.write(Batch(number, frame, self._planned, self.checkpoint, self._query))
            except BaseException as error:
                self._sink_error = error
                raise

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
        """Until all has been written that comes of what its topics hold now."""
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
                pass  # it is away, and will be asked again
            stopping.wait(POLL)

    def _error(self) -> BaseException | None:
        """Why the query ended; None while it runs."""
        query = self._query
        try:
            if query is not None and query.isActive:
                return None
            ended = None if query is None else query.exception()
        except (Py4JError, OSError) as error:
            gone = EngineError("the Java process of Spark has ended", next_step="start the app again")
            gone.__cause__ = error
            return gone
        return self._sink_error or ended or RuntimeError("the query ended by itself")

    def _may_try_again(self, error: BaseException) -> bool:
        """Note a failure, and wait for the next try; False if there is none."""
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
            self.failure = NodeFailed(self.node.name, self.checkpoint.last_batch(), cause, next_step=advice)
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
            return error
        return None


def prepare_session(spark: SparkSession) -> None:
    """What the queries of a run need of a session, whoever made it."""
    spark.conf.set("spark.sql.streaming.stopTimeout", "30s")
    # Where a plan holds the same part twice, Spark would read the second from the first's shuffle, and does not see the
    # watermark through that: the operator above it would wait for ever.
    spark.conf.set("spark.sql.exchange.reuse", "false")
