"""`headrace produce` and `headrace consume` against a real broker."""

import json
import os
import signal
import subprocess
import time
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.conftest import COMMAND, Headrace


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_lines_in_lines_out(headrace: Headrace, topic: str) -> None:
    headrace.ok("topics", "create", topic)
    done = headrace("produce", topic, stdin="one\n\nthree")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "3 of 3 records acknowledged\n")
    assert headrace.ok("consume", topic, "--exit-at-end") == "one\n\nthree\n"


def test_a_topic_that_does_not_exist_is_created_only_when_asked_to(headrace: Headrace, topic: str) -> None:
    headrace.ok("topics", "create", topic)
    typo = topic[:-1]
    complaint = headrace.fails("produce", typo, stdin="one\n")
    assert f"topic '{typo}' does not exist" in complaint
    assert complaint.endswith(f"did you mean '{topic}'? or create it with: --create")
    assert typo not in headrace.ok("topics", "list").split()
    done = headrace("produce", typo, "--create", stdin="one\n")
    assert (done.returncode, done.stderr) == (0, f"created {typo}\n1 of 1 records acknowledged\n")
    assert headrace("produce", typo, "--create", stdin="two\n").stderr == "1 of 1 records acknowledged\n"
    assert headrace.ok("consume", typo, "--exit-at-end") == "one\ntwo\n"


def test_lines_of_files_in_their_order(headrace: Headrace, topic: str) -> None:
    (headrace.folder / "first").write_text("1\n2\n")
    (headrace.folder / "second").write_text("4\n")
    headrace.ok("produce", topic, "--create", "first", "-", "second", stdin="3\n")
    assert headrace.ok("consume", topic, "--exit-at-end") == "1\n2\n3\n4\n"


def test_keys_and_headers(headrace: Headrace, topic: str) -> None:
    headrace.ok(
        "produce",
        topic,
        "--create",
        "--key-separator",
        ":",
        "--header",
        "from=here",
        "--header",
        "from=there",
        stdin="k:v:w\n",
    )
    (record,) = records(headrace.ok("consume", topic, "--exit-at-end", "--json"))
    assert (record["key"], record["value"]) == ("k", "v:w")
    assert record["headers"] == [["from", "here"], ["from", "there"]]
    assert (record["topic"], record["partition"], record["offset"]) == (topic, 0, 0)
    assert abs(record["timestamp"] / 1000 - time.time()) < 600
    assert headrace.ok("consume", topic, "--exit-at-end", "--key-separator", "=") == "k=v:w\n"


def test_what_consume_prints_produce_reads(headrace: Headrace, topic: str) -> None:
    headrace.ok("topics", "create", topic, f"{topic}-copy", "--partitions", "2")
    lines = [
        {
            "key": "k",
            "value": "text",
            "partition": 1,
            "timestamp": 1700000000000,
            "headers": {"a": "b", "n": None},
        },
        {"value": {"base64": "/wD+"}, "key": {"base64": "gA=="}, "partition": 1},
        {"key": "gone", "value": None, "partition": 0},
        {"value": {"nested": [1, 2.5, "é"]}, "partition": 0},
    ]
    stdin = "".join(json.dumps(line) + "\n" for line in lines)
    headrace.ok("produce", topic, "--json-lines", stdin=stdin)
    printed = headrace.ok("consume", topic, "--exit-at-end", "--json")
    read = sorted(records(printed), key=lambda record: (record["partition"], record["offset"]))
    assert [record["value"] for record in read] == [
        None,
        '{"nested":[1,2.5,"é"]}',
        "text",
        {"base64": "/wD+"},
    ]
    assert read[2]["headers"] == [["a", "b"], ["n", None]]
    assert read[2]["timestamp"] == 1700000000000
    headrace.ok("produce", f"{topic}-copy", "--json-lines", stdin=printed)
    copied = records(headrace.ok("consume", f"{topic}-copy", "--exit-at-end", "--json"))
    for record in copied:
        record["topic"] = topic
    assert sorted(copied, key=lambda record: (record["partition"], record["offset"])) == read


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_and_every_acks(headrace: Headrace, topic: str, compression: str) -> None:
    for acks in ("1", "all"):
        headrace.ok("produce", topic, "--create", "--compression", compression, "--acks", acks, stdin="x" * 2000 + "\n")
    done = headrace("produce", topic, "--compression", compression, "--acks", "0", stdin="last\n")
    assert "acks=0" in done.stderr
    assert headrace.ok("consume", topic, "--max", "3").count("\n") == 3


def test_a_report_for_programs(headrace: Headrace, topic: str) -> None:
    report = json.loads(headrace.ok("produce", topic, "--create", "--json", stdin="a\nb\n"))
    assert report == {"topic": topic, "sent": 2, "acknowledged": 2, "failed": 0, "failures": []}


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "not valid JSON"),
        ("[1]", "expected a JSON object, found list"),
        ('{"vale": 1}', 'unknown field "vale"'),
        ('{"value": {"base64": "?"}}', '"value" is not valid base64'),
        ('{"partition": "0"}', '"partition" must be a whole number'),
        ('{"timestamp": -1}', '"timestamp" must be a whole number'),
        ('{"headers": [1]}', '"headers" must be'),
    ],
)
def test_a_bad_line_is_named_and_what_came_before_is_kept(
    headrace: Headrace, topic: str, line: str, complaint: str
) -> None:
    stdin = f'{{"value": "good"}}\n{line}\n{{"value": "after"}}\n'
    message = headrace.fails("produce", topic, "--create", "--json-lines", stdin=stdin)
    assert f"stdin line 2: {complaint}" in message
    assert "this line and the ones after it were not sent" in message
    assert headrace.ok("consume", topic, "--exit-at-end") == "good\n"


def test_a_line_without_the_separator_and_a_file_that_is_not_there(headrace: Headrace, topic: str) -> None:
    assert "line 1: the line does not contain the separator ':'" in headrace.fails(
        "produce", topic, "--create", "--key-separator", ":", stdin="a\n"
    )
    assert "missing cannot be read (no such file or directory)" in headrace.fails(
        "produce", topic, "--create", "missing"
    )


def test_a_record_that_cannot_be_delivered_fails_the_command(headrace: Headrace, topic: str) -> None:
    headrace.ok("topics", "create", topic)
    done = headrace("produce", topic, "--json", "--json-lines", stdin='{"value":"a"}\n{"value":"b","partition":7}\n')
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert (report["sent"], report["acknowledged"], report["failed"]) == (2, 1, 1)
    assert report["failures"][0]["line"] == "stdin line 2"
    assert "1 of 2 records were not acknowledged" in done.stderr
    headrace.ok("topics", "alter", topic, "--set", "max.message.bytes=1000")
    assert "for larger records set" in headrace.fails("produce", topic, stdin="x" * 5000 + "\n")
    assert headrace.ok("consume", topic, "--exit-at-end") == "a\n"


def test_positions(headrace: Headrace, topic: str) -> None:
    lines = "".join(json.dumps({"value": str(n), "timestamp": 1700000000000 + n * 60000}) + "\n" for n in range(10))
    headrace.ok("topics", "create", topic, "--set", "retention.ms=-1")
    headrace.ok("produce", topic, "--json-lines", stdin=lines)

    def first(start: str) -> str:
        return headrace.ok("consume", topic, "--from", start, "--exit-at-end").partition("\n")[0]

    assert first("beginning") == first("earliest") == first("-100") == "0"
    assert first("end") == first("latest") == first("99") == first("2033-05-18T03:33:20Z") == ""
    assert first("7") == first("-3") == "7"
    assert first("@1700000240000") == first("2023-11-14T22:17:20Z") == "4"
    assert first("2023-11-14T22:17:20.001+00:00") == "5"


def test_a_limit_and_one_partition(headrace: Headrace, topic: str) -> None:
    headrace.ok("topics", "create", topic, "--partitions", "3")
    for index in range(3):
        headrace.ok("produce", topic, "--partition", str(index), stdin=f"a{index}\nb{index}\n")
    assert headrace.ok("consume", topic, "--partition", "2", "--exit-at-end") == "a2\nb2\n"
    both = headrace.ok("consume", topic, "--partition", "0", "--partition", "2", "--exit-at-end")
    assert sorted(both.split()) == ["a0", "a2", "b0", "b2"]
    assert headrace.ok("consume", topic, "--partition", "1", "--max", "1") == "a1\n"
    assert "has no partition 3" in headrace.fails("consume", topic, "--partition", "3")


def test_isolation(headrace: Headrace, topic: str) -> None:
    headrace.ok("topics", "create", topic)
    producer = Producer({"bootstrap.servers": headrace.address, "transactional.id": topic})
    producer.init_transactions(30)
    for value, commit in (("kept", True), ("dropped", False)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(30)
        if commit:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    assert headrace.ok("consume", topic, "--exit-at-end") == "kept\n"
    uncommitted = headrace.ok("consume", topic, "--exit-at-end", "--isolation", "read_uncommitted")
    assert uncommitted == "kept\ndropped\n"


def test_consume_waits_for_more_and_stops_on_ctrl_c(headrace: Headrace, topic: str) -> None:
    headrace.ok("produce", topic, "--create", stdin="first\n")
    process = headrace.start("consume", topic)
    assert process.stdout is not None
    assert process.stdout.readline() == "first\n"
    headrace.ok("produce", topic, stdin="second\n")
    assert process.stdout.readline() == "second\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (130, "", "")


def test_a_reader_that_goes_away_is_no_error_worth_a_word(headrace: Headrace, topic: str) -> None:
    headrace.ok("produce", topic, "--create", stdin="line\n" * 20000)
    read, write = os.pipe()
    process = subprocess.Popen(
        [COMMAND, "consume", topic], stdout=write, stderr=subprocess.PIPE, env=headrace.environment()
    )
    os.close(write)
    os.read(read, 5)
    os.close(read)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (1, b"")
