"""The graph of an app without problems: what each node reads, their order, and which nodes write the rejects."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from headrace.topology.choices import Guarantee, StateStore
from headrace.topology.duration import Duration
from headrace.topology.nodes import Channel, Feed, FunctionNode, Node, QueryNode, Source, Step
from headrace.topology.order import is_upstream, topological_order
from headrace.topology.queues import Queue, Worker
from headrace.topology.wiring import Inputs, feeds_through_steps

__all__ = ["Topology"]

STRONGEST_FIRST = list(Guarantee)
NO_DISORDER: Mapping[Node, Duration] = {}


class Topology:
    """An app's nodes and their connections. It is immutable: an app makes a new one each time."""

    def __init__(
        self,
        app_name: str,
        nodes: Sequence[Node],
        inputs: Inputs,
        prefix: str = "",
        runs: Collection[Node] | None = None,
        state: StateStore = StateStore.ROCKSDB,
        file: str = "",
    ) -> None:
        """`runs` are the nodes that are run, all if it is None; the others are only analysed.

        `file` is the one from which another process can load the app.
        """
        self.file = file
        self.app_name = app_name
        self.prefix = prefix
        self.state = state
        self._inputs = inputs
        self.nodes: Mapping[str, Node] = {node.name: node for node in nodes}
        declared = [node for node in nodes if isinstance(node, QueryNode)]
        self._feeds = {query: feeds_through_steps(query, inputs) for query in declared}
        self._readers: dict[Feed, list[QueryNode]] = {}
        for query, feeds in self._feeds.items():
            for feed in feeds if runs is None or query in runs else ():
                self._readers.setdefault(feed, []).append(query)
        self.order = self._ordered(nodes)
        self.analysed = tuple(node for node in self.order if isinstance(node, QueryNode))
        self.queries = tuple(query for query in self.analysed if runs is None or query in runs)
        self.workers = tuple(node for node in self.order if isinstance(node, Worker))
        self.queues = tuple(node for node in self.order if isinstance(node, Queue))

    def only(self, queries: Collection[QueryNode], *, upstreams: bool = True) -> "Topology":
        """These nodes and, unless told otherwise, those whose output they need. The topics of the rest are inputs."""
        needed: dict[Node, None] = {}
        left: list[Node] = list(queries)
        while left:
            node = left.pop()
            if node not in needed:
                needed[node] = None
                for feed in self._inputs[node].values():
                    left.append(feed.node)
                    if feed.is_rejected:
                        left += filter(None, [self.reject_writer(feed.node)])
        runs = [node for node in needed if isinstance(node, QueryNode)] if upstreams else queries
        kept = [node for node in self.nodes.values() if node in needed]
        return Topology(self.app_name, kept, self._inputs, self.prefix, runs, self.state, self.file)

    def replaced(self, others: Mapping[Node, Node]) -> "Topology":
        """The same graph with other nodes in the place of some, such as captures whose columns are now known."""

        def now(feed: Feed) -> Feed:
            if feed.node not in others:
                return feed
            other = others[feed.node]
            return Channel(other, feed.channel_name, feed.place) if feed.channel_name else other

        inputs = {
            others.get(node, node): {name: now(feed) for name, feed in feeds.items()}
            for node, feeds in self._inputs.items()
        }
        nodes = [others.get(node, node) for node in self.nodes.values()]
        return Topology(self.app_name, nodes, inputs, self.prefix, self.queries, self.state, self.file)

    def inputs(self, node: Node) -> Mapping[str, Feed]:
        """What each parameter of a node's function stands for; steps among them."""
        return self._inputs[node]

    def feeds(self, query: QueryNode) -> tuple[Feed, ...]:
        """What a query reads: the sources, streams and channels above it, steps seen through; each once."""
        return self._feeds[query]

    def readers(self, feed: Feed) -> tuple[QueryNode, ...]:
        """The queries that read it, in the order of declaration."""
        return tuple(self._readers.get(feed, ()))

    def reject_writer(self, feed: Feed) -> QueryNode | None:
        """The one reader that writes a feed's rejects: of the strongest guarantee, and the first declared.

        Streams come before views, since their transaction covers the rejects as well.
        """
        if not feed.is_parsed or feed.is_diverted:
            return None
        return min(self.readers(feed), key=_reject_rank, default=None)

    def rejects_written_by(self, query: QueryNode) -> tuple[Feed, ...]:
        """The feeds whose unusable rows this query writes to `<topic>.rejected`."""
        return tuple(feed for feed in self.feeds(query) if self.reject_writer(feed) is query)

    def source(self, feed: Feed) -> Source:
        """A feed that is a source."""
        assert isinstance(feed, Source), feed
        return feed

    def sources(self) -> tuple[Source, ...]:
        """Those that a query reads."""
        return tuple(node for node in self.nodes.values() if isinstance(node, Source) and self.readers(node))

    def query(self, name: str) -> QueryNode | None:
        """The query of that name."""
        found = self.nodes.get(name)
        return found if isinstance(found, QueryNode) else None

    def call(self, node: Node, values: Mapping[Feed, Any], steps: dict[Node, Any] | None = None) -> Any:
        """What a node's function gives for the values of its feeds. A step that is used twice is called once."""
        assert isinstance(node, FunctionNode), node
        called = {} if steps is None else steps
        given: dict[str, Any] = {}
        for name, feed in self._inputs[node].items():
            if isinstance(feed, Step):
                if feed not in called:
                    called[feed] = self.call(feed, values, called)
                given[name] = called[feed]
            else:
                given[name] = values[feed]
        return node(**given)

    def lateness(self, node: Node, disorder: Mapping[Node, Duration] = NO_DISORDER) -> Duration:
        """How late rows of a node may be: what it says, else the largest lateness among what it reads.

        To that comes the `disorder` of a node: by how much it puts its rows out of order itself.
        """
        if isinstance(node, Source):
            return node.lateness
        if isinstance(node, QueryNode) and node.lateness is not None:
            return node.lateness
        read = (self.lateness(feed.node, disorder).microseconds for feed in self._inputs[node].values())
        return Duration(max(read, default=0) + disorder.get(node, Duration(0)).microseconds)

    def beats(self, feed: Feed) -> bool:
        """Whether its watermark advances without events, by a heartbeat of its own or of an upstream topic."""
        node = feed.node
        if feed.is_late or feed.is_diverted:
            return False  # what is late is older than any time that is told
        if isinstance(node, QueryNode):
            return any(self.beats(upstream) for upstream in self.feeds(node) if not upstream.is_table)
        return node.heartbeat_after is not None

    def describe(self, query: QueryNode, disorder: Mapping[Node, Duration] = NO_DISORDER) -> dict[str, Any]:
        """What a query's checkpoint depends on among the declarations, as plain values to compare."""
        described: dict[str, Any] = {
            "kind": query.kind,
            "key": list(query.key),
            "lateness": str(self.lateness(query, disorder)),
            "sources": dict(sorted(self._describe_feed(feed, disorder) for feed in self.feeds(query))),
            "rejects": sorted(feed.origin for feed in self.rejects_written_by(query)),
        }
        return described | query.own_fingerprint

    def _describe_feed(self, feed: Feed, disorder: Mapping[Node, Duration]) -> tuple[str, dict[str, Any]]:
        node = feed.node
        described = {"kind": node.kind, "lateness": str(self.lateness(node, disorder))}
        return feed.origin, described | node.fingerprint

    def _ordered(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        upstreams = {node: [feed.node for feed in self._inputs[node].values()] for node in nodes}
        # Who reads rejects comes after who writes them, unless its own rows lead back there: rejects are
        # written when a row is read, before any function sees it, so such a loop is one of order alone.
        for feed, readers in self._readers.items():
            if feed.is_rejected:
                writer = self.reject_writer(feed.node)
                for reader in readers:
                    if writer is not None and not is_upstream(reader, writer, upstreams):
                        upstreams[reader].append(writer)
        return topological_order(nodes, upstreams)


def _reject_rank(query: QueryNode) -> tuple[int, bool, bool]:
    return STRONGEST_FIRST.index(query.guarantee), not query.sink.takes_records, query.is_real_time
