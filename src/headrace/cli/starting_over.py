"""`--reset` and `--replay`: their effects are shown and confirmed before anything is done."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from headrace import InputError
from headrace.cli.live import Display
from headrace.cli.output import ask

if TYPE_CHECKING:
    from headrace.config import Offsets, RunConfig
    from headrace.topology import QueryNode, Topology

__all__ = ["StartingOver"]


class StartingOver:
    """The nodes that a run resets or replays. Invalid names and times are rejected when it is created."""

    def __init__(self, topology: "Topology", resets: Sequence[str], replays: Sequence[str], agreed: bool) -> None:
        from headrace.engine import ReplayRequest, query_named

        self._topology = topology
        self._resets = [query_named(topology, name) for name in dict.fromkeys(resets)]
        self._replays = [ReplayRequest.parse(text) for text in replays]
        self._is_agreed = agreed
        replayed = {query_named(topology, request.node).name for request in self._replays}
        if both := sorted(query.name for query in self._resets if query.name in replayed):
            raise InputError(f"{', '.join(both)} cannot be both reset and replayed", next_step="choose one of the two")

    def agreed(self, config: "RunConfig", display: Display) -> "dict[str, Offsets | None]":
        """The nodes that start over and their offsets, once that is confirmed."""
        if not self._resets and not self._replays:
            return {}
        from headrace.config import Cluster
        from headrace.engine import Checkpoints, plan_replays

        checkpoints = Checkpoints(config.home, self._topology.app_name)
        replays = plan_replays(self._replays, self._topology, Cluster(config), checkpoints) if self._replays else []
        for query in self._resets:
            for line in self._effects_of_reset(query):
                display.remark(line)
        for replay in replays:
            for line in replay.effects:
                display.remark(line)
        if not self._is_agreed:
            ask("Go on?")
        return dict.fromkeys((query.name for query in self._resets), None) | {
            replay.node: replay.start for replay in replays
        }

    def _effects_of_reset(self, query: "QueryNode") -> Iterator[str]:
        from headrace.engine import written_topics

        name = query.name
        yield f"{name} reads all its sources again from the beginning"
        if query.table_name:
            yield f"{name} empties the table {query.table_name} and writes it again from what its topics hold now"
        for topic in written_topics(self._topology, query):
            yield f"{name} writes to {topic} again, after what is there"
        readers = [
            other.name
            for other in self._topology.queries
            if any(feed.node is query for feed in self._topology.feeds(other))
        ]
        if readers:
            yield f"{', '.join(readers)} will read what {name} writes again"
