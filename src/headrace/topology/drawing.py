"""Draws the graph: as text for the terminal, and as Mermaid."""

from collections.abc import Iterator

from headrace.topology.graph import Topology
from headrace.topology.names import failed_topic, rejected_topic
from headrace.topology.nodes import Node, QueryNode, Source

__all__ = ["as_mermaid", "as_text"]

SOURCE_SHAPE = ("[/", "/]")
SHAPES = {
    "step": ("(", ")"),
    "stream": ("[", "]"),
    "table": ("[[", "]]"),
    "capture": ("[[", "]]"),
    "view": ("[(", ")]"),
    "worker": ("([", "])"),
}


def as_text(topology: Topology) -> str:
    """A tree from each source. A node with several upstreams is drawn once, and only named after that."""
    lines = [topology.app_name]
    drawn: set[Node] = set()
    for node in topology.order:
        if not topology.inputs(node):
            lines += ["", _headline(topology, node), *_branches(topology, node, drawn, "")]
    return "\n".join(lines) + "\n"


def as_mermaid(topology: Topology) -> str:
    """A flowchart: sources slanted, streams square, tables with double sides, steps round, views as cylinders.

    Workers have round ends; a dotted arrow leads to the topic that takes what a worker returns.
    """
    lines = ["flowchart LR"]
    for node in topology.order:
        opening, closing = SHAPES.get(node.kind, SOURCE_SHAPE)
        label = "<br/>".join(_escaped(part) for part in (node.name, *_facts(topology, node)))
        lines.append(f'    {_id(node)}{opening}"{label}"{closing}')
    for node in topology.order:
        for feed in topology.inputs(node).values():
            label = f'|"{_escaped(feed.channel_name)}"|' if feed.channel_name else ""
            lines.append(f"    {_id(feed.node)} -->{label} {_id(node)}")
    lines += [f"    {_id(worker)} -.-> {_id(worker.into)}" for worker in topology.workers if worker.into is not None]
    return "\n".join(lines) + "\n"


def _branches(topology: Topology, node: Node, drawn: set[Node], indent: str) -> Iterator[str]:
    readers = [
        (feed.channel_name, reader)
        for reader in topology.order
        for feed in dict.fromkeys(topology.inputs(reader).values())
        if feed.node is node
    ]
    for position, (channel, reader) in enumerate(readers):
        last = position == len(readers) - 1
        arrow = ("└─" if last else "├─") + (f"{channel}─▶ " if channel else "▶ ")
        if reader in drawn:
            yield f"{indent}{arrow}{reader.name} (above)"
            continue
        drawn.add(reader)
        yield f"{indent}{arrow}{_headline(topology, reader)}"
        yield from _branches(topology, reader, drawn, indent + ("   " if last else "│  "))


def _headline(topology: Topology, node: Node) -> str:
    return "  ".join([node.name, " · ".join([node.kind, *_facts(topology, node)])])


def _facts(topology: Topology, node: Node) -> Iterator[str]:
    """What is shown of a node besides its name."""
    yield from node.drawing_facts
    if isinstance(node, Source | QueryNode):
        if node.key:
            yield f"key {', '.join(node.key)}"
        if node.event_time is not None:
            yield f"event time {node.event_time}"
            yield f"lateness {topology.lateness(node)}"
    if node.heartbeat_after is not None:
        yield f"heartbeat {node.heartbeat_after}"
    if isinstance(node, QueryNode):
        if node.channels:
            yield f"channels {', '.join(node.channels)}"
        if node.is_real_time:
            yield str(node.latency)
        yield str(node.guarantee)
        rejected = [rejected_topic(feed.topic_name) for feed in topology.rejects_written_by(node)]
        if rejected:
            yield f"writes {', '.join(rejected)}"
        if node.diverts:
            yield f"failed rows to {failed_topic(node.topic_name)}"


def _id(node: Node) -> str:
    # A node may be called "end" or "graph", which mean something to Mermaid.
    return f"node_{node.name}"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
