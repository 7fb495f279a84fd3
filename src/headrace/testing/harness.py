"""A harness runs an app in a test, which decides when rows are processed and when time advances."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Producer as Client

from headrace.clients import Producer, Receipt, Record, read_to_end
from headrace.config import Cluster, RunConfig, delete_topics
from headrace.engine import STATE_STORES, NodeProgress, Runner, marker_topic
from headrace.errors import InputError
from headrace.services import Addresses, launch, needs_of
from headrace.tables import ViewReader
from headrace.testing.environment import Environment
from headrace.topology import (
    App,
    Channel,
    Duration,
    Feed,
    Format,
    Node,
    QueryNode,
    Schema,
    Stream,
    Topic,
    did_you_mean,
    input_topic,
    named_feed,
    output_as_input,
)

__all__ = ["Harness"]

LIMIT = 30.0
REAL_TIME_INTERVAL = Duration.of("5 seconds")
"""To settle a real-time node is to wait for the end of its interval: the shortest that Spark takes."""
FOR_EVER = {"retention.ms": "-1"}
"""A test tells of any time, and a broker goes by that when it looks for what is past its retention."""


class Harness:
    """Runs an app on real Spark, a real broker and, if it has views, a real PostgreSQL, from empty topics.

    Queries keep running between the steps of a test. A node that fails is not restarted: the next step raises
    NodeFailed. Without an environment it starts its own, which takes about ten seconds; share one between harnesses,
    or use pytest's fixture `headrace_harness`.
    """

    def __init__(
        self,
        app: App,
        *,
        nodes: Iterable[Node | str] | None = None,
        upstreams: bool = True,
        environment: Environment | None = None,
        partitions: int = 1,
    ) -> None:
        """With `nodes`, only these nodes are started, and the nodes whose output they need.

        With `upstreams=False`, the nodes that they need are not started either: send rows to their streams instead.
        `partitions` is the number of partitions of each topic: with one, rows come out in the order they went in.
        """
        self.app = app
        self._whole = app.topology()
        chosen = None if nodes is None else [self._query(node) for node in nodes]
        self.topology = self._whole if chosen is None else self._whole.only(chosen, upstreams=upstreams)
        self._partitions = partitions
        self._stack = ExitStack()
        self._environment = self._stack.enter_context(Environment()) if environment is None else environment
        self._home = self._environment.new_folder(app.name)
        self._launched = ExitStack()
        self._runner: Runner | None = None
        self._inputs: dict[str, Topic] = {}
        self._marked = self._feeds_with_markers()
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def send(
        self,
        topic: Topic | Stream | Channel | str,
        *rows: Any,
        key: Any = None,
        headers: Mapping[str, bytes | str | None] | None = None,
        timestamp: datetime | str | None = None,
    ) -> list[Receipt]:
        """Send rows, each alone or in a list; returns once they are acknowledged, before they are processed.

        Rows for a stream, or for one of its channels, are written to its topic as if its node had written them,
        whether that node was started or not.
        Bytes are sent unchanged, so that a test can send malformed records. None deletes the row of a table that has
        `key`. `timestamp` is the records' timestamp, which is the event time of a table without one.
        Rows for a topic that only other nodes read, none of which was started, are refused.
        """
        topic = self._input(topic)
        self._check_read(topic)
        moment = None if timestamp is None else _moment(timestamp)
        flat = [row for given in rows for row in (_rows(given))]
        sent = [
            self._producer.send_raw(topic, row, key=key, headers=headers, timestamp=moment)
            if isinstance(row, bytes) and not _takes_bytes(topic)
            else self._producer.send(topic, row, key=key, headers=headers, timestamp=moment)
            for row in flat
        ]
        return [future.result(LIMIT) for future in sent]

    def settle(self) -> None:
        """Process everything that was sent and everything that results from it, in the order of the graph."""
        self._running.process_all_available()

    def advance(self, time: datetime | str) -> None:
        """Settle, then advance the watermark of every node to this time, as a later event would: windows that end by
        then close, and older rows are late from now on. No output shows the event."""
        moment = _moment(time)
        self.settle()
        moved: set[Feed] = set()
        lateness = self._running.lateness()
        for query in self.topology.queries:
            for feed in self.topology.feeds(query):
                if feed in self._marked and feed not in moved and feed.topic_name in lateness:
                    moved.add(feed)
                    # The watermark trails the newest event by the lateness.
                    newest = moment + lateness[feed.topic_name].timedelta
                    self._marker.produce(marker_topic(feed), newest.isoformat())
            self._marker.flush(LIMIT)
            self._running.process_all_available(query.name)

    def rows(self, node: Node | Channel | str) -> list[dict[str, Any]]:
        """The rows in a node's topic, table or view now, as dicts.

        Those of a topic in the order of writing; those of a table or view are the last of each key, sorted by key.
        """
        feed = self._feed(node)
        query = self._whole.query(str(feed))
        if query is not None and query.table_name:
            found = ViewReader(self._postgres(), query.app_name, query.name, query.key)
            try:
                return _by_key(found.rows(), query.key)
            finally:
                found.close()
        if feed.is_table:
            key = self._whole.source(feed).key if query is None else query.key
            last = {record.key: record.row for record in self.records(feed)}
            return _by_key([row for row in last.values() if row is not None], key)
        return [record.row for record in self.records(feed)]

    def records(self, node: Node | Channel | str) -> list[Record]:
        """The records in a node's topic now, with keys, headers and offsets."""
        feed = self._feed(node)
        if not feed.has_topic:
            raise InputError(f"the {feed.node.kind} {feed} is a table, not a topic", next_step="ask for its rows()")
        if feed.is_rejected and feed.topic_name not in self._topics():
            return []
        schema = self._running.output_schemas().get(str(feed))
        return list(read_to_end(self.app, feed, self._settings, schema))

    def progress(self, node: Node | str) -> NodeProgress:
        """A node's progress: rows read, late and rejected rows, watermark, state."""
        found = {progress.node: progress for progress in self._running.progress()}
        name = str(node)
        if name not in found:
            raise InputError(f"no node named {name!r} was started", next_step=did_you_mean(name, found))
        return found[name]

    def restart(self) -> None:
        """Stop all queries and restart them from their checkpoints, as a deployment does."""
        self._running.request_stop()
        self._launched.close()
        self._run()

    def close(self) -> None:
        """Stop the queries, and the environment if the harness started it."""
        self._runner = None
        self._launched.close()
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _running(self) -> Runner:
        if self._runner is None:
            raise InputError("the harness is closed", next_step="use it inside its `with` block, or inside its test")
        return self._runner

    def _start(self) -> None:
        config = RunConfig(home=self._home)
        addresses = self._environment.addresses(postgres=needs_of(self.topology, config).postgres)
        self._config = RunConfig(
            home=self._home,
            kafka=addresses.kafka,
            postgres=addresses.postgres,
            topic_settings={"partitions": str(self._partitions), **FOR_EVER},
            create_inputs=True,
            markers=True,
            state_partitions=1,
            real_time_interval=REAL_TIME_INTERVAL,
            attempts=1,
        )
        self._settings = self._config.client_settings()
        self._cluster = Cluster(self._config)
        self._empty_topics()
        self._spark = self._environment.spark.newSession()
        self._spark.conf.set("spark.sql.shuffle.partitions", "1")
        self._spark.conf.set("spark.sql.streaming.stateStore.providerClass", STATE_STORES[self.app.state])
        self._create_inputs()
        # Whatever an earlier harness of this app left in ledgers and views is not ours.
        self._run(starts_over=[query.name for query in self.topology.queries])
        self._producer = self._stack.enter_context(Producer(self.app, self._settings))
        self._marker = Client(self._settings)
        self._stack.callback(self._marker.flush, LIMIT)

    def _run(self, starts_over: Sequence[str] = ()) -> None:
        launched = launch(
            self.topology,
            self._config,
            lambda _: Addresses(None, None),
            spark=self._spark,
            starts_over=lambda _: dict.fromkeys(starts_over),
        )
        self._runner = self._launched.enter_context(launched)

    def _feeds_with_markers(self) -> set[Feed]:
        read = {feed for query in self.topology.queries for feed in self.topology.feeds(query)}
        return {feed for feed in read if feed.has_topic and not feed.is_rejected}

    def _empty_topics(self) -> None:
        """Delete what an earlier harness of this app left, and make the markers' topics."""
        markers = [marker_topic(feed) for feed in self._marked]
        own = {node.topic_name for node in self._whole.nodes.values() if node.topic_name}
        old = [name for name in self._topics() if name in own or any(name.startswith(f"{topic}.") for topic in own)]
        for outcome in delete_topics(self._cluster, old) if old else ():
            if outcome.error is not None:
                raise outcome.error
        for name in markers:
            self._cluster.create(name, 1, FOR_EVER)

    def _create_inputs(self) -> None:
        """The topics of streams that started nodes read and that no started node writes."""
        read = {feed for query in self.topology.queries for feed in self.topology.feeds(query)}
        inputs = [feed for feed in read if not self._is_written(feed) and (feed.channel_name or feed.node.is_query)]
        for feed in inputs:
            self._cluster.create(feed.topic_name, self._partitions, FOR_EVER)

    def _check_read(self, topic: Topic) -> None:
        readers = {
            query.name
            for query in self._whole.queries
            if any(feed.topic_name == topic.topic_name for feed in self._whole.feeds(query))
        }
        if readers and not readers & {query.name for query in self.topology.queries}:
            raise InputError(
                f"no node that was started reads {topic.topic_name!r}",
                next_step=f"add one that does to nodes=: {', '.join(sorted(readers))}",
            )

    def _input(self, topic: Topic | Stream | Channel | str) -> Topic:
        """The topic to send to. That of a stream has the columns that Spark found in what its function returns."""
        feed = named_feed(self.app, topic)
        if (found := input_topic(feed)) is not None:
            return found
        if str(feed) not in self._inputs:
            is_output = any(str(output) == str(feed) for output in feed.node.outputs)
            made = output_as_input(feed, self._schema_of(feed)) if is_output else None
            if made is None:
                raise InputError(f"no rows can be sent to {feed}", next_step="send to a topic or to a stream")
            self._inputs[str(feed)] = made
        return self._inputs[str(feed)]

    def _schema_of(self, feed: Feed) -> Schema:
        found = self._running.output_schemas()
        if str(feed) not in found:
            from headrace.engine import plan_topology

            needed = self._whole.only([query for query in self._whole.analysed if query is feed.node])
            found = {
                f"{query.node.name}.{channel}".rstrip("."): schema
                for query in plan_topology(needed, self._spark, self._config)
                for channel, schema in query.output_schemas.items()
            }
        return found[str(feed)]

    def _query(self, node: Node | str) -> QueryNode:
        found = self._whole.nodes.get(str(node))
        if found is None:
            raise InputError(f"the app has no node {str(node)!r}", next_step=did_you_mean(str(node), self._whole.nodes))
        query = self._whole.query(found.name)
        if query is None:
            raise InputError(
                f"nodes: the {found.kind} {found} is not started by itself", next_step="name streams, tables or views"
            )
        return query

    def _is_written(self, feed: Feed) -> bool:
        """Whether a node that was started writes it."""
        if feed.is_rejected:
            return self.topology.reject_writer(feed.node) is not None
        return feed.node in self.topology.queries

    def _topics(self) -> list[str]:
        return self._cluster.topic_names()

    def _feed(self, node: Node | Channel | str) -> Feed:
        if not isinstance(node, str):
            feed: Feed = node
        else:
            name, _, channel = node.partition(".")
            if name not in self._whole.nodes:
                raise InputError(f"the app has no node {name!r}", next_step=did_you_mean(name, self._whole.nodes))
            found = self._whole.nodes[name]
            feed = Channel(found, channel, found.place) if channel else found
        origin = feed.node
        query = self._whole.query(origin.name)
        if not feed.has_topic and not (query is not None and query.table_name):
            if origin.outputs:
                raise InputError(f"the rows of {feed} are in its channels", next_step=f"ask for {origin.outputs[0]}")
            raise InputError(f"the {origin.kind} {feed} is neither a topic nor a view: there is nothing to read")
        if query is not None and query not in self.topology.analysed:
            raise InputError(f"the {origin.kind} {origin} was not started", next_step="add it to nodes=")
        return feed

    def _postgres(self) -> str:
        return self._config.postgres_dsn


def _by_key(rows: Iterable[dict[str, Any]], key: tuple[str, ...]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: tuple((row[name] is None, row[name]) for name in key))


def _rows(given: Any) -> Iterable[Any]:
    """One row, or several."""
    is_one = isinstance(given, Mapping | str | bytes) or not isinstance(given, Iterable)
    return [given] if is_one or hasattr(given, "model_fields") else given


def _takes_bytes(topic: Topic) -> bool:
    return topic.format is Format.BYTES


def _moment(time: datetime | str) -> datetime:
    moment = datetime.fromisoformat(time) if isinstance(time, str) else time
    if moment.tzinfo is None:
        raise InputError(
            f"the time {moment.isoformat()} has no time zone", next_step="add tzinfo=UTC, or a Z at the end"
        )
    return moment.astimezone(UTC)
