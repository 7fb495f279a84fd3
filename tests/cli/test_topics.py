"""`headrace topics` against a real broker."""

import contextlib
import json
import os
import pty
import subprocess
import time

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from headrace.services import Home
from tests.conftest import COMMAND, Headrace


def test_a_topic_from_creation_to_deletion(headrace: Headrace, topic: str) -> None:
    created = headrace.ok("topics", "create", topic, "--partitions", "3", "--set", "retention.ms=3600000")
    assert created == f"created {topic}\n"
    listed = {row["topic"]: row for row in json.loads(headrace.ok("topics", "list", "--json"))}
    assert listed[topic] == {"topic": topic, "partitions": 3, "replicas": 1}
    assert any(line.split() == [topic, "3", "1"] for line in headrace.ok("topics", "list").splitlines())

    described = json.loads(headrace.ok("topics", "describe", topic, "--json"))
    assert described["topic"] == topic
    assert [row["partition"] for row in described["partitions"]] == [0, 1, 2]
    assert all(row["start"] == row["end"] == 0 for row in described["partitions"])
    assert described["settings"]["retention.ms"]["value"] == "3600000"

    headrace.ok("topics", "alter", topic, "--set", "retention.ms=7200000", "--partitions", "5")
    described = json.loads(headrace.ok("topics", "describe", topic, "--json"))
    assert len(described["partitions"]) == 5
    assert described["settings"]["retention.ms"]["value"] == "7200000"
    headrace.ok("topics", "alter", topic, "--unset", "retention.ms")
    assert "retention.ms" not in json.loads(headrace.ok("topics", "describe", topic, "--json"))["settings"]

    assert headrace.ok("topics", "delete", topic, "--yes") == f"deleted {topic}\n"
    assert f"topic '{topic}' does not exist" in headrace.fails("topics", "describe", topic)


def test_describe_counts_what_is_there_and_shows_every_setting_when_asked(headrace: Headrace, topic: str) -> None:
    headrace.ok("topics", "create", topic)
    headrace.ok("produce", topic, stdin="a\nb\n")
    described = json.loads(headrace.ok("topics", "describe", topic, "--all-settings", "--json"))
    assert described["partitions"][0]["end"] == 2
    assert described["settings"]["retention.ms"]["source"] == "default config"
    text = headrace.ok("topics", "describe", topic, "--all-settings")
    assert text.startswith(f"{topic}  (id ")
    assert "retention.ms" in text


def test_creating_twice_is_an_error_unless_it_may_be_there(headrace: Headrace, topic: str) -> None:
    headrace.ok("topics", "create", topic)
    assert f"topic '{topic}' already exists" in headrace.fails("topics", "create", topic)
    assert headrace.ok("topics", "create", topic, "--if-missing") == f"{topic} exists\n"


def test_what_the_broker_refuses_is_said_in_its_words(headrace: Headrace, topic: str) -> None:
    assert "retention.mss" in headrace.fails("topics", "create", topic, "--set", "retention.mss=1")
    headrace.ok("topics", "create", topic, "--partitions", "2")
    assert "partition" in headrace.fails("topics", "alter", topic, "--partitions", "1")
    assert "could not create topic 'a/b'" in headrace.fails("topics", "create", "a/b")


def test_a_missing_topic_is_named_and_never_created_by_asking(headrace: Headrace, topic: str) -> None:
    for words in (["describe"], ["alter", "--set", "retention.ms=1"], ["delete", "--yes"]):
        assert f"topic '{topic}' does not exist" in headrace.fails("topics", words[0], topic, *words[1:])
    assert "does not exist" in headrace.fails("consume", topic, "--exit-at-end")
    assert topic not in headrace.ok("topics", "list")


def test_a_topic_of_nearly_that_name_is_what_was_meant(headrace: Headrace, topic: str) -> None:
    headrace.ok("topics", "create", f"{topic}-orders")
    asked = f"did you mean '{topic}-orders'? or create it with: headrace topics create {topic}-odrers"
    assert asked in headrace.fails("consume", f"{topic}-odrers")
    assert "does not exist" in (told := headrace.fails("consume", "zzz"))
    assert "did you mean" not in told


def test_deleting_without_a_person_to_ask_needs_yes(headrace: Headrace, topic: str) -> None:
    headrace.ok("topics", "create", topic)
    assert "add --yes" in headrace.fails("topics", "delete", topic)
    assert topic in headrace.ok("topics", "list")


def test_deleting_a_topic_that_is_read_warns(headrace: Headrace, topic: str) -> None:
    headrace.ok("topics", "create", topic)
    quiet = f"{topic}-quiet"
    headrace.ok("topics", "create", quiet)
    cluster = AdminClient({"bootstrap.servers": headrace.address}).list_topics(timeout=30).cluster_id
    consumer = Consumer({"bootstrap.servers": headrace.address, "group.id": f"group-{topic}"})
    consumer.subscribe([topic])
    limit = time.monotonic() + 30
    while not consumer.assignment():
        assert time.monotonic() < limit
        consumer.poll(0.1)
    with Home(headrace.folder / ".headrace").running("fraud") as registered:
        registered.note(cluster, {"large": [topic, "cards"], "last": [topic], "other": ["cards"]})
        refused = headrace("topics", "delete", topic, quiet)
        consumer.poll(0)
        assert refused.returncode == 1
        warnings = [line for line in refused.stderr.splitlines() if line.startswith("warning: ")]
        assert warnings == [
            f"warning: topic '{topic}' is being read by the running app 'fraud' (large, last), which will fail",
            f"warning: topic '{topic}' is being read by the group 'group-{topic}'",
        ]
    consumer.close()
    deleted = headrace("topics", "delete", topic, quiet, "--yes")
    assert deleted.stdout == f"deleted {topic}\ndeleted {quiet}\n"
    assert "warning" not in deleted.stderr, "neither runs any more"


@pytest.mark.parametrize(("answer", "deleted"), [(b"n\n", False), (b"y\n", True)])
def test_a_person_is_asked_before_a_topic_goes(headrace: Headrace, topic: str, answer: bytes, deleted: bool) -> None:
    headrace.ok("topics", "create", topic)
    ours, theirs = pty.openpty()
    os.write(ours, answer)
    done = subprocess.run(
        [COMMAND, "topics", "delete", topic], stdin=theirs, capture_output=True, env=headrace.environment(), timeout=60
    )
    os.close(ours)
    os.close(theirs)
    assert f"Delete {topic} at {headrace.address}, with all records?".encode() in done.stdout + done.stderr
    assert done.returncode == (0 if deleted else 1)
    assert (topic in headrace.ok("topics", "list")) is not deleted


def test_a_terminal_gets_a_table_that_fits_it(headrace: Headrace, topic: str) -> None:
    headrace.ok("topics", "create", topic)
    ours, theirs = pty.openpty()
    environment = {**headrace.environment(), "COLUMNS": "60", "TERM": "xterm"}
    with subprocess.Popen([COMMAND, "topics", "list"], stdout=theirs, env=environment) as command:
        os.close(theirs)
        shown = _until_hung_up(ours)
        os.close(ours)
        assert command.wait(timeout=60) == 0
    assert "\x1b[1m" in shown
    assert topic in shown


def _until_hung_up(terminal: int) -> str:
    """All that was written: a terminal gives at most 4 KB at a time, and an error once nobody writes to it any more."""
    read = b""
    with contextlib.suppress(OSError):
        while part := os.read(terminal, 1 << 16):
            read += part
    return read.decode()
