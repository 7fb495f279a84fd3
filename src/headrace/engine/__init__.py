"""How Spark runs a topology: its session and connector, one query per node, sources, sinks, checkpoints."""
