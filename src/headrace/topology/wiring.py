"""Builds the graph from the signatures: the upstream of each parameter, and all problems."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from headrace.errors import Problem
from headrace.topology.captures import Capture, TableName
from headrace.topology.databases import Database
from headrace.topology.declaring import problem_at
from headrace.topology.names import FAILED
from headrace.topology.nearest import did_you_mean
from headrace.topology.nodes import Channel, Feed, FunctionNode, Node, Parameter, QueryNode, Step
from headrace.topology.order import cycles_in

__all__ = ["Inputs", "connect", "feeds_through_steps"]

Inputs: TypeAlias = Mapping[Node, Mapping[str, Feed]]
"""For each node the feed that each of its parameters stands for."""


def connect(nodes: Sequence[Node]) -> tuple[Inputs, list[Problem]]:
    """The inputs of every node, and all problems that concern several declarations."""
    problems: list[Problem] = []
    by_name: dict[str, Node] = {}
    for node in nodes:
        by_name.setdefault(node.name, node)
    inputs: dict[Node, dict[str, Feed]] = {node: {} for node in nodes}
    for node in nodes:
        if isinstance(node, FunctionNode):
            for parameter in node.parameters:
                feed = by_name.get(parameter.upstream) if isinstance(parameter.upstream, str) else parameter.upstream
                found = _problem_with(node, parameter, feed, nodes)
                if found is not None:
                    problems.append(found)
                elif feed is not None:
                    inputs[node][parameter.name] = feed
            if not node.parameters:
                problems.append(_problem(node, "it reads nothing", "name its upstream as a parameter"))
    problems += _topic_problems(nodes)
    problems += _capture_problems(nodes)
    cycles = _cycle_problems(nodes, inputs)
    problems += cycles
    if not cycles:
        problems += _reading_problems(nodes, inputs)
    return inputs, problems


def feeds_through_steps(node: Node, inputs: Inputs) -> tuple[Feed, ...]:
    """The topics, files and rates that a node reads, by itself or through the steps it uses; each once."""
    feeds: dict[Feed, None] = {}
    for feed in inputs[node].values():
        feeds |= dict.fromkeys(feeds_through_steps(feed, inputs) if isinstance(feed, Step) else (feed,))
    return tuple(feeds)


def _problem(node: Node, message: str, next_step: str | None = None) -> Problem:
    return problem_at(node.place, f"{node.kind} {node.name!r}: {message}", next_step)


def _problem_with(node: FunctionNode, parameter: Parameter, feed: Feed | None, nodes: Sequence[Node]) -> Problem | None:
    if feed is None:
        names = [other.name for other in nodes if other is not node and _can_be_read(other)]
        return _problem(node, f"unknown upstream {parameter.name!r}", did_you_mean(parameter.name, names))
    upstream = feed.node
    if upstream not in nodes:
        return _problem(node, f"{feed} belongs to the app {upstream.app_name!r}", "declare its topic here")
    if isinstance(feed, Channel):
        if feed.name in upstream.channel_names:
            return None
        message = f"{upstream.kind} {upstream.name!r} has no channel {feed.name!r}"
        step = did_you_mean(feed.name, upstream.channel_names)
        if feed.name == FAILED and isinstance(upstream, QueryNode):
            message = f"nothing writes {feed}: {upstream.name!r} does not divert rows on which its function raises"
            step = f'add on_error="divert" to {upstream.name!r}'
        return problem_at(feed.place, f"{node.kind} {node.name!r}: {message}", step or "read the node itself")
    if upstream.is_worker:
        step = f"add into= to {upstream.name!r}, and read that topic"
        return _problem(node, f"the worker {upstream.name!r} is not a stream", step)
    if isinstance(upstream, QueryNode) and not upstream.sink.takes_records:
        step = f"read what {upstream.name!r} reads, or make it a stream"
        what = "is a table" if upstream.holds_table else f"writes to {upstream.sink.described}"
        return _problem(node, f"the {upstream.kind} {upstream.name!r} {what}, not a stream", step)
    if isinstance(upstream, QueryNode) and upstream.channels:
        step = f"name one by a default: {parameter.name}={upstream.name}.{upstream.channels[0]}"
        return _problem(node, f"the rows of {upstream.name!r} are in its channels", step)
    return None


def _can_be_read(node: Node) -> bool:
    return not node.is_worker and bool(node.outputs or not node.is_query)


def _topics_of(node: Node) -> Iterator[str]:
    """Every topic that a node reads or writes under its own name."""
    if node.has_topic:
        yield node.topic_name
    for channel in node.channel_names:
        yield f"{node.topic_name}.{channel}"


def _topic_problems(nodes: Sequence[Node]) -> Iterator[Problem]:
    owners: dict[str, Node] = {}
    for node in nodes:
        for topic_name in _topics_of(node):
            owner = owners.setdefault(topic_name, node)
            if owner.name != node.name:
                message = (
                    f"the topic {topic_name!r} already belongs to the {owner.kind} {owner.name!r} at {owner.place}"
                )
                yield _problem(node, message, f"read {owner.name!r} instead, or name another topic")
                break


def _capture_problems(nodes: Sequence[Node]) -> Iterator[Problem]:
    first: dict[tuple[str | None, str], Capture] = {}
    taken: dict[tuple[Database, TableName], Capture] = {}
    for node in nodes:
        if not isinstance(node, Capture):
            continue
        database = node.database
        other = first.setdefault((database.address, database.slot), node)
        if other.database != database:
            message = f"it reads the slot {database.slot!r} as the capture {other.name!r} does, with other options"
            yield _problem(node, message, "make one headrace.database(...) and give it to both, or name another slot")
        same = taken.setdefault((database, node.table), node)
        if same is not node:
            yield _problem(node, f"{node.table} is captured by {same.name!r} already", f"read {same.name!r} instead")


def _cycle_problems(nodes: Sequence[Node], inputs: Inputs) -> list[Problem]:
    upstreams = {node: [feed.node for feed in inputs[node].values()] for node in nodes}
    problems = []
    for cycle in cycles_in(nodes, upstreams):
        way = " → ".join(node.name for node in (*cycle, cycle[0]))
        problems.append(_problem(cycle[0], f"it is its own upstream: {way}", "break the cycle"))
    return problems


def _reading_problems(nodes: Sequence[Node], inputs: Inputs) -> Iterator[Problem]:
    queries = [node for node in nodes if isinstance(node, QueryNode)]
    feeds_of = {node: feeds_through_steps(node, inputs) for node in queries}
    read = {feed for feeds in feeds_of.values() for feed in feeds}
    for node, feeds in feeds_of.items():
        for feed in feeds:
            if feed.is_rejected and feed.node not in read:
                step = f"no node reads {feed.node.name!r}, so nothing rejects its records: add a node that reads it"
                yield _problem(node, f"nothing writes {feed}", step)
            if node.is_real_time:
                if not feed.has_topic:
                    message = f"{feed.node.kind} {feed.node.name!r} cannot feed it: real-time mode reads only topics"
                    yield _problem(node, message, "leave latency out")
                elif feed.is_table:
                    message = f"the table {feed.node.name!r} cannot feed it: real-time mode has no tables"
                    yield _problem(node, message, "leave latency out")
