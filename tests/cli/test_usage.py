"""The command line itself: help, mistakes, and exit codes."""

import pytest

import headrace as package
from tests.conftest import Headrace

COMMANDS = [
    "broker", "produce", "consume", "doctor",
    "topics", "topics list", "topics create", "topics describe", "topics alter", "topics delete",
    "groups", "groups list", "groups describe", "groups reset", "groups delete",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(headrace_alone: Headrace, command: str) -> None:
    words = command.split()
    text = headrace_alone.ok(*words, "--help")
    assert f"Usage: headrace {command}" in text
    if len(words) == 2 or command in ("produce", "consume", "doctor"):
        assert "--kafka " in text
        assert "HEADRACE_KAFKA" in text


def test_version(headrace_alone: Headrace) -> None:
    assert headrace_alone.ok("--version") == f"headrace {package.__version__}\n"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["bogus"], "no such command 'bogus'; see: headrace --help"),
        (["topics", "create"], "missing argument 'TOPIC...'; see: headrace topics create --help"),
        (["topics", "list", "--nope"], "no such option: --nope"),
        (["topics", "alter", "t"], "nothing to change"),
        (["topics", "create", "t", "--set", "retention.ms"], "'retention.ms' is not NAME=VALUE"),
        (["topics", "list", "--kafka", "nowhere"], "'nowhere' is no address"),
        (["topics", "list", "--kafka-set", "x"], "'x' is not NAME=VALUE"),
        (["produce", "t", "--acks", "2"], "'2' is not one of"),
        (["produce", "t", "--header", "x"], "'x' is not NAME=VALUE"),
        (["produce", "t", "--json-lines", "--key-separator", ":"], "--key-separator has no meaning"),
        (["produce", "t", "--key-separator", ""], "the separator is empty"),
        (["consume", "t", "--from", "somewhere"], "'somewhere' is no position"),
        (["consume", "t", "--group", "g", "--partition", "0"], "a group shares out partitions by itself"),
        (["consume", "t", "--max", "0"], "invalid value for '--max'"),
        (["groups", "reset", "g"], "either --to or --shift"),
        (["groups", "reset", "g", "--to", "end", "--shift", "1"], "either --to or --shift"),
        (["broker"], "missing option '--data'"),
        (["broker", "--data", "d", "--durability", "hope"], "'hope' is not one of"),
        (["broker", "--data", "d", "--set", "num.partitions"], "'num.partitions' is not NAME=VALUE"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(headrace_alone: Headrace, words: list[str], complaint: str) -> None:
    assert complaint in headrace_alone.fails(*words, code=2)


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
def test_no_broker_there_is_one_line_that_says_how_to_start_one(
    headrace_alone: Headrace, words: list[str]
) -> None:
    complaint = headrace_alone.fails(*words)
    assert "no Kafka answers at 127.0.0.1:1 (connection refused)" in complaint
    assert "headrace broker --data ./log --listen 127.0.0.1:1" in complaint


def test_a_client_setting_that_does_not_exist_is_named(headrace: Headrace) -> None:
    complaint = headrace.fails("topics", "list", "--kafka-set", "no.such.setting=1")
    assert "no.such.setting" in complaint
    assert "--kafka-set" in complaint
