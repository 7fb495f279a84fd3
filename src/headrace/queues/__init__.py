"""Queues on topics: sending, workers, delayed messages."""

from headrace.lazy import public_names

__all__, __getattr__, __dir__ = public_names(__name__)
