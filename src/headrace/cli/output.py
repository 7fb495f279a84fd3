"""Output on stdout: tables for people, aligned columns for pipes, JSON for programs."""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from headrace import InputError

if TYPE_CHECKING:
    from headrace.config import Outcome

EXISTS = "TOPIC_ALREADY_EXISTS"

Cell = str | int | None


def print_json(data: Any) -> None:
    """One JSON document, indented for people and still for programs."""
    print(json.dumps(data, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Rows under their columns. Off a terminal nothing is wrapped or cut: tools read the lines."""
    texts = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    numeric = [all(cell is None or isinstance(cell, int) for cell in column) for column in zip(*rows, strict=True)]
    if sys.stdout.isatty():
        _print_pretty(columns, texts, numeric)
        return
    lines = [[column.upper() for column in columns], *texts]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric or [False] * len(widths), strict=True)
        ]
        print("  ".join(cells).rstrip())


def _print_pretty(columns: Sequence[str], texts: Sequence[Sequence[str]], numeric: Sequence[bool]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        right = index < len(numeric) and numeric[index]
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for row in texts:
        table.add_row(*(Text(text) for text in row))
    Console().print(table)


def print_outcomes(done: str, outcomes: "Sequence[Outcome]", *, may_exist: bool = False) -> None:
    """A line for each that was done, or that exists already if it may. The first error is raised after them."""
    errors = []
    for outcome in outcomes:
        if outcome.error is None:
            print(f"{done} {outcome.name}")
        elif may_exist and outcome.error.code == EXISTS:
            print(f"{outcome.name} exists")
        else:
            errors.append(outcome.error)
    if errors:
        raise errors[0]


def note(message: str) -> None:
    """A message for people, on stderr: stdout is for data."""
    print(message, file=sys.stderr)


def ask(question: str) -> None:
    """Ask for confirmation. A script passes --yes instead."""
    if not sys.stdin.isatty():
        raise InputError("stdin is not a terminal, so nothing was changed", next_step="to confirm, add --yes")
    typer.confirm(question, abort=True)
