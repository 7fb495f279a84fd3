"""What a running app looks like: the table on a terminal, and the lines of a log."""

import time
from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from headrace.cli import live
from headrace.engine.run.progress import NodeProgress, NodeState
from headrace.threads import Threads

NODE = NodeProgress(
    node="bursts",
    kind="stream",
    state=NodeState.RUNNING,
    batch=12,
    rows=34567,
    rows_per_second=1234.5,
    lag=7,
    watermark=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    late=3,
    rejected=2,
    state_rows=1000,
    state_bytes=2_500_000,
    batch_seconds=0.0876,
    errors=0,
    last_error=None,
)
IDLE = replace(NODE, node="alerts", batch=None, lag=None, watermark=None, batch_seconds=None)
FAILED = replace(NODE, node="spend", state=NodeState.RESTARTING, errors=2, last_error="PostgreSQL is away")


def shown(*nodes: NodeProgress) -> str:
    console = Console(file=StringIO(), width=140, force_terminal=False)
    console.print(live.table(nodes))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_the_table_has_a_line_for_each_node() -> None:
    lines = shown(NODE, IDLE, FAILED).splitlines()
    assert lines[0].split("  ")[0].strip() == "node"
    for column in live.COLUMNS:
        assert column in lines[0]
    bursts = ["bursts", "1,234", "7", "2026-01-02", "03:04:05", "3", "2", "1,000", "2.5", "MB", "88", "ms", "0"]
    assert lines[1].split() == bursts
    assert lines[2].split() == ["alerts", "1,234", "?", "-", "3", "2", "1,000", "2.5", "MB", "-", "0"]
    assert lines[3].startswith("spend (restarting)")
    assert lines[4].strip() == "spend: PostgreSQL is away"


def test_a_line_says_the_same_in_words() -> None:
    assert live.line(NODE) == (
        "bursts: running, 1,234 rows/s, lag 7, watermark 2026-01-02 03:04:05, "
        "3 late, 2 rejected, 1,000 state rows (2.5 MB), batch 12 took 88 ms"
    )
    assert live.line(FAILED).endswith("2 errors, the last: PostgreSQL is away")
    assert "watermark" not in live.line(IDLE)


HINT = "6 events are older than the first row of their key in the table cards: use as_of='now'"
MISSING = replace(NODE, late_is_minimum=True, unmatched=6543, hints=(HINT,))


def test_events_without_a_row_and_late_rows_that_spark_counted_are_shown() -> None:
    assert "unmatched" not in shown(NODE)
    lines = shown(NODE, MISSING).splitlines()
    assert lines[0].split()[-1] == "unmatched"
    assert [line.split()[-1] for line in lines[1:3]] == ["0", "6,543"]
    assert "≥ 3" in lines[2]
    assert lines[3].strip() == f"bursts: {HINT}"
    assert "at least 3 late, 2 rejected, 1,000 state rows (2.5 MB), 6,543 unmatched, batch" in live.line(MISSING)


def test_a_log_tells_a_hint_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(live, "LOOK_EVERY", 0.01)
    now: list[Any] = [NODE]
    with live.Display().showing(lambda: now, list, Threads()):
        now[:] = [MISSING]
        printed = wait_for(capsys, f"bursts: {HINT}")
        now[:] = [replace(MISSING, hints=(HINT.replace("6", "7"),), errors=1, last_error="oh")]
        printed += wait_for(capsys, "the last: oh")
    assert "7 events" not in printed + capsys.readouterr().out


def test_a_log_tells_news_at_once_and_progress_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live, "LOOK_EVERY", 0.01)
    monkeypatch.setattr(live, "LINE_EVERY", 0.1)
    now: list[Any] = [NODE]
    display = live.Display()
    with display.showing(lambda: now, list, Threads()):
        printed = wait_for(capsys, "lag 7")
        time.sleep(0.3)
        assert capsys.readouterr().out == "", "nothing new, nothing said"
        now[:] = [replace(NODE, state=NodeState.RESTARTING, errors=1, last_error="oh")]
        printed = wait_for(capsys, "the last: oh")
        now[:] = [replace(NODE, batch=13, lag=6)]
        printed += wait_for(capsys, "batch 13")
    assert printed.count("batch 13") in (1, 2)


def test_a_log_tells_an_error_once_until_there_is_another(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live, "LOOK_EVERY", 0.01)
    now: list[Any] = [NODE]
    display = live.Display()

    def told(state: NodeState, errors: int, last_error: str) -> str:
        now[:] = [replace(NODE, state=state, errors=errors, last_error=last_error)]
        return wait_for(capsys, f"{errors} errors")

    with display.showing(lambda: now, list, Threads()):
        time.sleep(0.1)
        assert "the last: oh" in told(NodeState.RESTARTING, 1, "oh")
        assert told(NodeState.RUNNING, 1, "oh").endswith("1 errors\n")
        assert told(NodeState.RESTARTING, 2, "oh").endswith("2 errors\n")
        assert "the last: well" in told(NodeState.RESTARTING, 3, "well")


def wait_for(capsys: pytest.CaptureFixture[str], text: str) -> str:
    limit = time.monotonic() + 20
    printed = ""
    while text not in printed:
        assert time.monotonic() < limit, printed
        printed += capsys.readouterr().out
        time.sleep(0.005)
    return printed


def test_failed_rows_are_counted_and_the_search_for_them_is_shown() -> None:
    searching = "its function raises on some of 120 records: 64 checked, 12 failed"
    failing = replace(NODE, failed=1042, activity=searching)
    assert "failed" not in shown(NODE)
    lines = shown(NODE, failing).splitlines()
    assert lines[0].split()[-1] == "failed"
    assert [line.split()[-1] for line in lines[1:3]] == ["0", "1,042"]
    assert lines[3].strip() == f"bursts: {searching}"
    assert live.line(failing).endswith(f"1,042 failed, batch 12 took 88 ms, {searching}")
