"""The services of a home folder: what `up`, `run` and the tests start and stop, find and check."""

from headrace.lazy import public_names

__all__, __getattr__, __dir__ = public_names(__name__)
