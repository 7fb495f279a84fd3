"""How Spark runs a topology: its session and connector, one query per node, sources, sinks, checkpoints."""

from headrace.engine.adapters import SinkAdapter, SourceAdapter, register_sink, register_source

__all__ = ["SinkAdapter", "SourceAdapter", "register_sink", "register_source"]
