"""Capture: changes of a database a second, their latency, and what it costs to be idle."""
