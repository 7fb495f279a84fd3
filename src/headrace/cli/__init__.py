"""The `headrace` command."""

from headrace.cli.main import app, main

__all__ = ["app", "main"]
