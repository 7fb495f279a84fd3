"""The command line itself: help, mistakes, and exit codes."""

import http.server
import re
import resource
import socketserver
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import headrace as package
from headrace.cli.main import run
from tests.conftest import Headrace

COMMANDS = [
    "run", "check", "graph", "up", "down", "status",
    "broker", "produce", "consume", "doctor",
    "topics", "topics list", "topics create", "topics describe", "topics alter", "topics delete",
    "groups", "groups list", "groups describe", "groups reset", "groups delete",
]  # fmt: skip


FRAUD = Path(__file__).parents[2] / "benchmarks" / "engine" / "topology" / "fraud.py"
PAGE = Path(__file__).parents[2] / "docs" / "commands.md"


def ends_with(code: int, words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """What the command prints on stdout and stderr, run in this process."""
    capsys.readouterr()
    assert run(words) == code
    return capsys.readouterr()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = command.split()
    text, _ = ends_with(0, [*words, "--help"], capsys)
    assert f"Usage: headrace {command}" in text
    if len(words) == 2 or command in ("produce", "consume", "doctor"):
        assert "--kafka " in text
        assert "HEADRACE_KAFKA" in text


@pytest.mark.parametrize("words", [["--help"], ["check", str(FRAUD)]], ids=["help", "check"])
def test_what_needs_no_spark_takes_less_than_half_a_second(words: list[str]) -> None:
    def seconds_of_cpu() -> float:
        """A machine that does other work makes a command wait; it does not make it compute more."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "headrace", *words], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds_of_cpu() for _ in range(3)) < 0.5


@pytest.mark.parametrize("command", [command for command in COMMANDS if command not in ("topics", "groups")])
def test_the_page_of_commands_names_every_option_and_no_other(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    text, _ = ends_with(0, [*command.split(), "--help"], capsys)
    # What the commands on topics share is said once.
    shared = set() if command == "run" else {"--kafka", "--kafka-set"}
    offered = set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.MULTILINE)) - {"--help"} - shared
    section = PAGE.read_text().partition(f"## headrace {command}\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(--[\w-]+)", section, re.MULTILINE)) == offered


@pytest.mark.parametrize("words", [[], ["topics"], ["groups"]], ids=str)
def test_no_sentence_of_the_help_is_cut_off(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text, _ = ends_with(0, [*words, "--help"], capsys)
    listed = text.partition("Commands:\n")[2].splitlines()
    assert listed
    assert [line for line in listed if line.endswith("...")] == []


def test_a_group_of_commands_named_alone_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["topics"], ["groups"]):
        _, text = ends_with(2, words, capsys)
        assert text.startswith("Usage: headrace")
        assert len(text.splitlines()) > 5


def test_version_and_the_module(headrace_alone: Headrace) -> None:
    assert headrace_alone.ok("--version") == f"headrace {package.__version__}\n"
    module = [sys.executable, "-m", "headrace", "--version"]
    assert subprocess.check_output(module, text=True) == f"headrace {package.__version__}\n"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["bogus"], "no such command 'bogus'; see: headrace --help"),
        (["topics", "create"], "missing argument 'TOPIC...'; see: headrace topics create --help"),
        (["topics", "list", "--nope"], "no such option: --nope"),
        (["topics", "alter", "t"], "nothing to change"),
        (["topics", "create", "t", "--set", "retention.ms"], "'retention.ms' is not NAME=VALUE"),
        (["topics", "list", "--kafka", "nowhere"], "'nowhere' is not an address"),
        (["topics", "list", "--kafka-set", "x"], "'x' is not NAME=VALUE"),
        (["produce", "t", "--acks", "2"], "'2' is not one of"),
        (["produce", "t", "--header", "x"], "'x' is not NAME=VALUE"),
        (["produce", "t", "--json-lines", "--key-separator", ":"], "--key-separator cannot be used with"),
        (["produce", "t", "--key-separator", ""], "the separator is empty"),
        (["consume", "t", "--from", "somewhere"], "'somewhere' is not a position"),
        (
            ["consume", "t", "--group", "g", "--partition", "0"],
            "a group assigns the partitions: --partition cannot be used with --group",
        ),
        (["consume", "t", "--max", "0"], "invalid value for '--max'"),
        (["groups", "reset", "g"], "either --to or --shift"),
        (["groups", "reset", "g", "--to", "end", "--shift", "1"], "either --to or --shift"),
        (["run"], "missing argument 'FILE'; see: headrace run --help"),
        (["run", "app.py", "--kafka-set", "x"], "'x' is not NAME=VALUE"),
        (["run", "app.py", "--seconds", "0"], "invalid value for '--seconds'"),
        (["broker"], "missing option '--data'"),
        (["broker", "--data", "d", "--durability", "hope"], "'hope' is not one of"),
        (["broker", "--data", "d", "--set", "num.partitions"], "'num.partitions' is not NAME=VALUE"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, text = ends_with(2, words, capsys)
    assert out == ""
    assert text.startswith("headrace: ")
    assert text.count("\n") == 1
    assert complaint in text


@pytest.mark.parametrize(
    "words",
    [
        ["topics", "list"],
        ["topics", "describe", "t"],
        ["produce", "t"],
        ["consume", "t"],
        ["groups", "list"],
        ["groups", "reset", "g", "--to", "end"],
    ],
)
def test_no_broker_there_is_one_line_that_says_how_to_start_one(headrace_alone: Headrace, words: list[str]) -> None:
    complaint = headrace_alone.fails(*words)
    assert "no Kafka answers at 127.0.0.1:1 (connection refused)" in complaint
    assert "headrace broker --data ./log --listen 127.0.0.1:1" in complaint


class Deaf(socketserver.BaseRequestHandler):
    """Takes a connection and says nothing."""

    def handle(self) -> None:
        while self.request.recv(1024):
            pass


class Curt(socketserver.BaseRequestHandler):
    """Takes a connection and closes it."""

    def handle(self) -> None:
        self.request.recv(1)


@pytest.mark.parametrize(
    ("handler", "reason", "limit"),
    [
        (http.server.SimpleHTTPRequestHandler, "it does not speak Kafka", 5),
        (Curt, "it closed the connection without an answer", 5),
        (Deaf, "it accepts connections but did not answer within 5 s", 9),
    ],
)
def test_a_port_that_does_not_speak_kafka_is_found_out_quickly(
    headrace_alone: Headrace, handler: type[socketserver.BaseRequestHandler], reason: str, limit: float
) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        started = time.monotonic()
        complaint = headrace_alone.fails("topics", "list", "--kafka", f"127.0.0.1:{port}")
        server.shutdown()
    assert time.monotonic() - started < limit
    expected = f"no Kafka answers at 127.0.0.1:{port} ({reason}); check the port, or set another address with --kafka"
    assert complaint.endswith(expected)


def test_a_client_setting_that_does_not_exist_is_named(headrace: Headrace) -> None:
    complaint = headrace.fails("topics", "list", "--kafka-set", "no.such.setting=1")
    assert "no.such.setting" in complaint
    assert "--kafka-set" in complaint
