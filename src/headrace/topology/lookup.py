"""Which node, channel or topic is meant by a name, for those who send to it or read it."""

from headrace.errors import InputError
from headrace.topology.app import App
from headrace.topology.duration import Duration
from headrace.topology.nearest import did_you_mean
from headrace.topology.nodes import Channel, Feed, QueryNode, TableTopic, Topic
from headrace.topology.schema import Schema

__all__ = ["input_topic", "named_feed", "output_as_input", "topic_feed"]


def named_feed(app: App, feed: Feed | str) -> Feed:
    """The node or channel of that name: `payments`, `payments.rejected`, or the name of a topic itself."""
    if not isinstance(feed, str):
        return feed
    nodes = {node.name: node for node in app.nodes}
    if feed in nodes:
        return nodes[feed]
    node_name, _, channel = feed.rpartition(".")
    if node_name in nodes and channel in nodes[node_name].channel_names:
        return Channel(nodes[node_name], channel, nodes[node_name].place)
    for node in app.nodes:
        if node.topic_name == feed and (node.has_topic or node.outputs):
            return node
    raise InputError(f"app {app.name!r} has no topic {feed!r}", next_step=did_you_mean(feed, nodes))


def topic_feed(app: App, feed: Feed | str) -> Feed:
    """A feed that is in a topic, for a reader of it."""
    found = named_feed(app, feed)
    node = found.node
    if found.channel_name and found.channel_name not in node.channel_names:
        raise InputError(
            f"{node.name} has no channel {found.channel_name!r}",
            next_step=did_you_mean(found.channel_name, node.channel_names),
        )
    if found.has_topic:
        return found
    if node.outputs:
        first = node.outputs[0]
        raise InputError(f"the rows of {found} are in its channels", next_step=f"read {first}")
    raise InputError(
        f"the {node.kind} {found} has no topic that can be read", next_step="name a topic, a stream or a channel"
    )


def input_topic(feed: Feed) -> Topic | None:
    """The feed, if it is a topic that others write."""
    return feed if isinstance(feed, Topic) else None


def output_as_input(feed: Feed, schema: Schema) -> Topic | None:
    """The topic of a node's output as one that others write, with the columns it has; None for anything else."""
    node = feed.node
    if not isinstance(node, QueryNode) or all(str(output) != str(feed) for output in node.outputs):
        return None
    kind = TableTopic if node.is_table else Topic
    return kind(
        app_name=node.app_name,
        name=str(feed),
        place=node.place,
        schema=schema,
        key=node.key,
        event_time=None,
        lateness=Duration(0),
        ahead=None,
        topic_name=feed.topic_name,
    )
