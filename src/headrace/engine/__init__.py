"""How Spark runs a topology: its session and connector, one query per node, sources, sinks, checkpoints."""

from headrace.lazy import public_names

__all__, __getattr__, __dir__ = public_names(__name__)
