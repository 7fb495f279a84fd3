"""Change data capture: the rows of PostgreSQL's tables and their changes, written to topics exactly once."""

from headrace.lazy import public_names

__all__, __getattr__, __dir__ = public_names(__name__)
