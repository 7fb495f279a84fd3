"""`headrace doctor`: true about what is there, helpful about what is not."""

import json
import subprocess

from tests.conftest import COMMAND, Headrace


def test_all_is_well_where_it_is(headrace: Headrace) -> None:
    text = headrace.ok("doctor")
    assert text.endswith("no problems found\n")
    assert all(line.startswith("ok ") for line in text.splitlines()[:-1])
    report = json.loads(headrace.ok("doctor", "--json"))
    assert report["ok"] is True
    assert {"python", "java", "disk", "kafka", "confluent-kafka"} <= {check["name"] for check in report["checks"]}
    assert not list(headrace.folder.iterdir())


def test_no_broker_is_a_problem_with_a_next_step(headrace_alone: Headrace) -> None:
    done = headrace_alone("doctor")
    assert done.returncode == 1
    assert "problem  kafka" in done.stdout
    assert "→ start a broker with: headrace broker" in done.stdout
    assert done.stdout.endswith("checks found a problem\n")


def test_a_machine_without_java_and_a_folder_that_cannot_be_used(headrace: Headrace) -> None:
    environment = {**headrace.environment(), "PATH": "/nonexistent"}
    environment.pop("JAVA_HOME", None)
    done = subprocess.run(
        [COMMAND, "doctor", "--json", "--data", "/proc"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    report = json.loads(done.stdout)
    problems = {check["name"]: check["next_step"] for check in report["checks"] if not check["ok"]}
    assert done.returncode == 1
    assert problems.keys() == {"java", "disk"}
    assert "install Java 17" in problems["java"]
    assert "--data" in problems["disk"]
