"""`headrace broker` as a person starts and stops it."""

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.conftest import Headrace


@contextmanager
def running(headrace: Headrace, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A broker on the folder `log`, and the address its ready line names."""
    process = headrace.start("broker", "--data", "log", "--listen", "127.0.0.1:0", *words)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        ready = re.fullmatch(r"headrace broker ready at (127\.0\.0\.1:\d+)\b.*\n", line)
        assert ready, (line, process.communicate(timeout=20))
        yield process, ready[1]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=20)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_line_when_ready_and_exit_0_when_asked_to_stop(headrace_alone: Headrace, number: int) -> None:
    with running(headrace_alone) as (process, address):
        headrace_alone.ok("produce", "kept", "--create", "--kafka", address, stdin="through a restart\n")
        process.send_signal(number)
        out, err = process.communicate(timeout=10)
        assert (process.returncode, out) == (0, "")
        assert "Traceback" not in err
    with running(headrace_alone) as (_, address):
        assert headrace_alone.ok("consume", "kept", "--kafka", address, "--exit-at-end") == "through a restart\n"


def test_settings_and_durability_reach_the_broker(headrace_alone: Headrace) -> None:
    with running(headrace_alone, "--set", "num.partitions=3", "--durability", "os") as (_, address):
        headrace_alone.ok("topics", "create", "wide", "--kafka", address)
        (row,) = json.loads(headrace_alone.ok("topics", "list", "--json", "--kafka", address))
        assert row["partitions"] == 3


def test_a_second_broker_on_the_folder_is_refused(headrace_alone: Headrace) -> None:
    with running(headrace_alone):
        complaint = headrace_alone.fails("broker", "--data", "log", "--listen", "127.0.0.1:0")
        assert "another broker is running" in complaint
        assert "--data" in complaint


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--set", "num.partition=3"], "num.partitions"),
        (["--set", "num.partitions=many"], "num.partitions"),
        (["--listen", "here"], "not an address"),
        (["--listen", "0.0.0.0:0"], "--insecure"),
        (["--data", "/proc/nowhere"], "--data"),
    ],
)
def test_what_cannot_be_served_is_one_line(headrace_alone: Headrace, words: list[str], complaint: str) -> None:
    assert complaint in headrace_alone.fails("broker", "--data", "log", "--listen", "127.0.0.1:0", *words)


def test_an_address_in_use_is_one_line(headrace_alone: Headrace) -> None:
    with running(headrace_alone) as (_, address):
        assert address in headrace_alone.fails("broker", "--data", "other", "--listen", address)
