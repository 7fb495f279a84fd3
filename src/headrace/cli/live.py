"""How a running app is shown: a live table on a terminal, lines of a log elsewhere."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from threading import Event
from typing import TYPE_CHECKING

from headrace.threads import Threads

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from headrace.engine import NodeProgress
    from headrace.supervised import ProcessStatus

    Look = Callable[[], Sequence[NodeProgress]]
    LookBeside = Callable[[], Sequence[ProcessStatus]]

__all__ = ["Display"]

COLUMNS = ("node", "rows/s", "lag", "watermark", "late", "rejected", "state rows", "state size", "batch time", "errors")
# Most apps look nothing up and divert nothing: these columns are there once they have something to show.
SELDOM = ("unmatched", "failed")
LOOK_EVERY = 0.5
LINE_EVERY = 10.0


class Display:
    """Shows progress, and prints remarks."""

    def __init__(self) -> None:
        self._pretty = sys.stdout.isatty()

    def remark(self, text: str) -> None:
        """Print a line; rich moves the live table out of its way."""
        print(text if self._pretty else f"{_now()} {text}", flush=True)

    @contextmanager
    def showing(self, look: "Look", beside: "LookBeside", threads: Threads) -> Iterator[None]:
        """Show the progress of nodes, and of the processes beside them, until the end of the block."""
        with self._table(look, beside, threads) if self._pretty else self._lines(look, beside, threads):
            yield

    @contextmanager
    def _table(self, look: "Look", beside: "LookBeside", threads: Threads) -> Iterator[None]:
        from rich.live import Live

        ended = Event()

        def refresh() -> None:
            while not ended.wait(LOOK_EVERY):
                live.refresh()

        # Refreshed by a thread of ours, whose death is noticed. What is printed to stderr does not belong in the table.
        with Live(
            get_renderable=lambda: tables(look(), beside()),
            auto_refresh=False,
            vertical_overflow="visible",
            redirect_stderr=False,
        ) as live:
            thread = threads.start("display", refresh)
            try:
                yield
            finally:
                ended.set()
                thread.join()

    @contextmanager
    def _lines(self, look: "Look", beside: "LookBeside", threads: Threads) -> Iterator[None]:
        ended = Event()
        thread = threads.start("display", lambda: self._log(look, beside, ended))
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _log(self, look: "Look", beside: "LookBeside", ended: Event) -> None:
        """A line for each every ten seconds while it is busy, and at once if its state or its errors change."""
        said: dict[str, str] = {}
        states: dict[str, str] = {}
        shown: dict[str, tuple[object, ...]] = {}
        happened: dict[str, tuple[object, ...]] = {}
        errors: dict[str, str | None] = {}
        hinted: dict[str, int] = {}
        looks = 0
        while not ended.wait(LOOK_EVERY):
            looks += 1
            for node in look():
                event = (node.state, node.errors)
                news = event != happened.get(node.node, event)
                due = looks % round(LINE_EVERY / LOOK_EVERY) == 0
                now = (node.batch, node.lag, node.errors, node.activity)
                if news or (due and now != shown.get(node.node)):
                    self.remark(line(node, is_error_known=node.last_error == errors.get(node.node)))
                    shown[node.node] = now
                    errors[node.node] = node.last_error
                happened[node.node] = event
                for hint in node.hints[hinted.get(node.node, 0) :]:
                    self.remark(f"{node.node}: {hint}")
                hinted[node.node] = len(node.hints)
            for process in beside():
                news = process.state != states.get(process.name, process.state)
                due = looks % round(LINE_EVERY / LOOK_EVERY) == 0
                if news or (due and process_line(process) != said.get(process.name)):
                    self.remark(process_line(process))
                    said[process.name] = process_line(process)
                states[process.name] = process.state


def table(nodes: "Sequence[NodeProgress]") -> "Table":
    """The nodes as a rich table, with errors below."""
    from rich.table import Table
    from rich.text import Text

    result = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    seldom = [name for name in SELDOM if any(getattr(node, name) for node in nodes)]
    for column in (*COLUMNS, *seldom):
        result.add_column(column, justify="left" if column == "node" else "right", no_wrap=column != "node")
    for node in nodes:
        style = {"failed": "bold red", "restarting": "yellow"}.get(node.state, "")
        name = Text(node.node, style=style)
        if node.state not in ("running", "stopped"):
            name.append(f" ({node.state})", style=style)
        result.add_row(name, *cells(node), *(f"{getattr(node, name):,}" for name in seldom))
    wrong = [f"{node.node}: {node.last_error}" for node in nodes if node.last_error and node.state != "running"]
    wrong += [f"{node.node}: {node.activity}" for node in nodes if node.activity]
    wrong += [f"{node.node}: {hint}" for node in nodes for hint in node.hints]
    if wrong:
        result.caption = Text("\n".join(wrong), style="yellow")
        result.caption_justify = "left"
    return result


def tables(nodes: "Sequence[NodeProgress]", processes: "Sequence[ProcessStatus]") -> "Group":
    """The nodes, and below them a line for each process beside them."""
    from rich.console import Group
    from rich.text import Text

    styles = {"failed": "bold red", "restarting": "yellow"}
    lines = [Text(process_line(process), style=styles.get(process.state, "")) for process in processes]
    return Group(*([table(nodes)] if nodes else []), *lines)


def process_line(process: "ProcessStatus") -> str:
    """A process beside the nodes: its state and what it reports."""
    said = [process.state, *(f"{name} {_figure(value)}" for name, value in process.figures.items())]
    if process.restarts:
        said.append(f"{process.restarts:,} restarts, the last: {process.last_error}")
    return f"{process.name}: {', '.join(said)}"


def _figure(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}" if isinstance(value, float) else str(value)


def cells(node: "NodeProgress") -> list[str]:
    """The columns after the node's name."""
    return [
        f"{node.rows_per_second:,.0f}",
        "?" if node.lag is None else f"{node.lag:,}",
        "-" if node.watermark is None else _shown_time(node.watermark),
        f"≥ {node.late:,}" if node.late_is_minimum else f"{node.late:,}",
        f"{node.rejected:,}",
        f"{node.state_rows:,}",
        _shown_size(node.state_bytes),
        "-" if node.batch_seconds is None else f"{node.batch_seconds * 1000:,.0f} ms",
        f"{node.errors:,}",
    ]


def line(node: "NodeProgress", *, is_error_known: bool = False) -> str:
    """The same as a line of a log; a known error is counted, not repeated."""
    rate, lag, watermark, late, rejected, state, size, batch, errors = cells(node)
    said = [f"{node.node}: {node.state}, {rate} rows/s, lag {lag}"]
    said += [f"watermark {watermark}"] if node.watermark is not None else []
    said += [f"{late.replace('≥', 'at least')} late, {rejected} rejected, {state} state rows ({size})"]
    said += [f"{getattr(node, name):,} {name}" for name in SELDOM if getattr(node, name)]
    said += [f"batch {node.batch} took {batch}"] if node.batch is not None else []
    said += [node.activity] if node.activity else []
    if node.errors:
        said += [f"{errors} errors" if is_error_known else f"{errors} errors, the last: {node.last_error}"]
    return ", ".join(said)


def _shown_time(moment: datetime) -> str:
    moment = moment.astimezone(UTC)
    return f"{moment:%H:%M:%S}" if moment.date() == datetime.now(UTC).date() else f"{moment:%Y-%m-%d %H:%M:%S}"


def _shown_size(size: int) -> str:
    return f"{size:,} B" if size < 1000 else f"{size / 1000:,.0f} kB" if size < 1e6 else f"{size / 1e6:,.1f} MB"


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
