"""Which topic a client means: a node, one of its channels, or the name of either."""

from headrace.errors import InputError
from headrace.topology import App, Channel, Feed, Files, Rate, Step, Stream, Topic, View, node_of
from headrace.topology.nearest import did_you_mean

__all__ = ["named_feed", "topic_feed"]


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
        if node.topic_name == feed and not isinstance(node, View):
            return node
    raise InputError(f"app {app.name!r} has no topic {feed!r}", next_step=did_you_mean(feed, nodes))


def topic_feed(app: App, feed: Feed | str) -> Feed:
    """A feed that is in a topic, for a reader of it."""
    found = named_feed(app, feed)
    node = node_of(found)
    if isinstance(node, Rate | Step) or (isinstance(found, Files | View)):
        raise InputError(
            f"the {node.kind} {found} has no topic that can be read", next_step="name a topic, a stream or a channel"
        )
    if isinstance(found, Stream) and found.channels:
        raise InputError(f"the rows of {found} are in its channels", next_step=f"read {found}.{found.channels[0]}")
    if isinstance(found, Channel) and found.name not in node.channel_names:
        raise InputError(
            f"{node.name} has no channel {found.name!r}", next_step=did_you_mean(found.name, node.channel_names)
        )
    assert isinstance(found, Topic | Stream | Channel)
    return found
