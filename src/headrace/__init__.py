"""Headrace: event streams end to end, for Python engineers."""

__version__ = "0.1.0"

__all__ = ["__version__"]
