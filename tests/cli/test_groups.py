"""`headrace groups`, and `consume --group`, against a real broker."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import Headrace


@pytest.fixture
def group(topic: str) -> str:
    return f"group-of-{topic}"


def wait_for(condition: Callable[[], Any], limit: float = 30) -> Any:
    deadline = time.monotonic() + limit
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.1)
    return found


def describe(headrace: Headrace, group: str) -> dict[str, Any]:
    return json.loads(headrace.ok("groups", "describe", group, "--json"))


def test_a_group_goes_on_where_it_stopped(headrace: Headrace, topic: str, group: str) -> None:
    headrace.ok("produce", topic, "--create", stdin="1\n2\n3\n4\n")
    assert headrace.ok("consume", topic, "--group", group, "--max", "2") == "1\n2\n"
    (row,) = describe(headrace, group)["partitions"]
    assert (row["committed"], row["end"], row["lag"]) == (2, 4, 2)
    assert headrace.ok("consume", topic, "--group", group, "--exit-at-end") == "3\n4\n"
    assert headrace.ok("consume", topic, "--group", group, "--exit-at-end") == ""
    assert f"{group}  empty, 0 members, lag 0" in headrace.ok("groups", "describe", group)
    listed = json.loads(headrace.ok("groups", "list", "--json"))
    assert {"group": group, "state": "empty", "type": "classic"} in listed
    assert group in headrace.ok("groups", "list")


def test_reading_without_a_group_leaves_no_group(headrace: Headrace, topic: str) -> None:
    headrace.ok("produce", topic, "--create", stdin="1\n")
    headrace.ok("consume", topic, "--exit-at-end")
    assert "headrace-without-group" not in headrace.ok("groups", "list")


def test_a_new_group_starts_where_it_is_told(headrace: Headrace, topic: str, group: str) -> None:
    headrace.ok("produce", topic, "--create", stdin="1\n2\n3\n")
    words = ["consume", topic, "--group", group, "--exit-at-end"]
    assert headrace.ok(*words, "--from", "-1") == "3\n"
    assert headrace.ok(*words, "--from", "beginning") == ""


def test_members_are_shown_and_guard_their_offsets(headrace: Headrace, topic: str, group: str) -> None:
    headrace.ok("topics", "create", topic, "--partitions", "2")
    headrace.ok("produce", topic, "--create", "--partition", "0", stdin="1\n")
    process = headrace.start("consume", topic, "--group", group)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        described = describe(headrace, group)
        assert described["state"] == "stable"
        (member,) = described["members"]
        assert member["partitions"] == [f"{topic}[0]", f"{topic}[1]"]
        assert [row["member"] for row in described["partitions"]] == [member["member"]] * 2
        assert member["member"] in headrace.ok("groups", "describe", group)
        assert "has 1 members" in headrace.fails("groups", "reset", group, "--to", "earliest", "--yes")
        assert "has 1 members" in headrace.fails("groups", "delete", group, "--yes")
    finally:
        process.terminate()
        process.communicate(timeout=20)


def test_two_members_share_the_partitions(headrace: Headrace, topic: str, group: str) -> None:
    headrace.ok("topics", "create", topic, "--partitions", "4")
    processes = [headrace.start("consume", topic, "--group", group) for _ in range(2)]
    try:

        def shared() -> bool:
            try:
                members = describe(headrace, group)["members"]
            except AssertionError:
                return False
            return sorted(len(member["partitions"]) for member in members) == [2, 2]

        wait_for(shared)
    finally:
        for process in processes:
            process.terminate()
            process.communicate(timeout=20)


def test_reset_shows_first_and_moves_with_yes(headrace: Headrace, topic: str, group: str) -> None:
    headrace.ok("topics", "create", topic, "--partitions", "2", "--set", "retention.ms=-1")
    for index in range(2):
        lines = "".join(
            json.dumps({"value": str(n), "partition": index, "timestamp": 1700000000000 + n}) + "\n" for n in range(10)
        )
        headrace.ok("produce", topic, "--create", "--json-lines", stdin=lines)
    headrace.ok("consume", topic, "--group", group, "--exit-at-end")

    def reset(*words: str) -> list[int]:
        answer = json.loads(headrace.ok("groups", "reset", group, *words, "--json"))
        assert answer["done"] == ("--yes" in words)
        return [row["new"] for row in answer["offsets"]]

    def committed() -> list[int]:
        return [row["committed"] for row in describe(headrace, group)["partitions"]]

    assert reset("--to", "earliest") == [0, 0]
    assert committed() == [10, 10]
    assert reset("--to", "earliest", "--yes") == committed() == [0, 0]
    assert reset("--shift", "3", "--yes") == committed() == [3, 3]
    assert reset("--shift", "-5", "--yes") == committed() == [0, 0]
    assert reset("--to", "@1700000000004", "--yes") == committed() == [4, 4]
    assert reset("--to", "2", "--topic", f"{topic}:1", "--yes") == [2]
    assert committed() == [4, 2]
    assert reset("--to", "-1", "--topic", topic, "--yes") == committed() == [9, 9]
    assert headrace.ok("consume", topic, "--group", group, "--exit-at-end") == "9\n9\n"
    done = headrace("groups", "reset", group, "--to", "latest")
    assert "nothing was changed; pass --yes to make these changes" in done.stderr
    assert done.stdout.splitlines()[0].split() == ["TOPIC", "PARTITION", "COMMITTED", "NEW"]


def test_a_group_can_be_placed_before_it_exists(headrace: Headrace, topic: str, group: str) -> None:
    headrace.ok("produce", topic, "--create", stdin="1\n2\n3\n")
    assert "name the topics with --topic" in headrace.fails("groups", "reset", group, "--to", "1")
    assert "use --to instead" in headrace.fails("groups", "reset", group, "--shift", "1", "--topic", topic)
    assert "has no partition '9'" in headrace.fails("groups", "reset", group, "--to", "1", "--topic", f"{topic}:9")
    headrace.ok("groups", "reset", group, "--to", "1", "--topic", topic, "--yes")
    assert headrace.ok("consume", topic, "--group", group, "--exit-at-end") == "2\n3\n"


def test_delete(headrace: Headrace, topic: str, group: str) -> None:
    headrace.ok("produce", topic, "--create", stdin="1\n")
    headrace.ok("consume", topic, "--group", group, "--exit-at-end")
    assert "add --yes" in headrace.fails("groups", "delete", group)
    assert headrace.ok("groups", "delete", group, "--yes") == f"deleted {group}\n"
    for words in (["delete", group, "--yes"], ["describe", group]):
        assert f"group '{group}' does not exist" in headrace.fails("groups", *words)
