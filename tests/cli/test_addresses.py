"""Where the commands that work on topics find Kafka: as told, in the environment, in the file, in the home folder."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from headrace import Unreachable
from headrace.cli.kafka import Cluster
from headrace.cli.options import DEFAULT_KAFKA, connect
from tests.conftest import Headrace


class Unaddressed(Headrace):
    """The command with no word of any address but those a test gives."""

    def __init__(self, folder: Path) -> None:
        super().__init__("", folder)
        self.variables: dict[str, str] = {}

    def environment(self) -> Mapping[str, str]:
        usual = {name: value for name, value in super().environment().items() if not name.startswith("HEADRACE_")}
        return usual | self.variables

    def asked_address(self, *words: str) -> str:
        """The address that it complains of."""
        return self.fails("topics", "list", *words).partition("no Kafka answers at ")[2].partition(" ")[0]


@pytest.fixture
def headrace(tmp_path: Path) -> Unaddressed:
    return Unaddressed(tmp_path)


@pytest.fixture
def home(headrace: Unaddressed) -> Iterator[Path]:
    """A home folder whose services are up, not at the usual port: others may want it."""
    folder = headrace.folder / ".headrace"
    folder.mkdir()
    (folder / "services.json").write_text(json.dumps({"broker": {"address": "127.0.0.1:0"}}))
    headrace.ok("up")
    yield folder
    headrace.ok("down")


def test_in_the_folder_of_an_app_no_address_is_needed(headrace: Unaddressed, home: Path) -> None:
    assert headrace.ok("topics", "create", "orders") == "created orders\n"
    headrace.ok("produce", "orders", stdin="one\ntwo\n")
    assert headrace.ok("consume", "orders", "--group", "readers", "--exit-at-end") == "one\ntwo\n"
    assert "readers" in headrace.ok("groups", "list")
    assert "answers in" in headrace.ok("doctor")
    elsewhere = Unaddressed(headrace.folder / "elsewhere")
    elsewhere.folder.mkdir()
    elsewhere.variables["HEADRACE_HOME"] = str(home)
    assert "orders" in elsewhere.ok("topics", "list")
    (elsewhere.folder / "headrace.toml").write_text('home = "../.headrace"\n')
    elsewhere.variables.clear()
    assert "orders" in elsewhere.ok("topics", "list")


def test_the_first_that_says_something_wins(headrace: Unaddressed, home: Path) -> None:
    (headrace.folder / "headrace.toml").write_text('kafka = "127.0.0.1:2"\n')
    assert headrace.asked_address() == "127.0.0.1:2"
    headrace.variables["HEADRACE_KAFKA"] = "127.0.0.1:3"
    assert headrace.asked_address() == "127.0.0.1:3"
    assert headrace.asked_address("--kafka", "127.0.0.1:4") == "127.0.0.1:4"


def test_a_home_whose_broker_is_down_is_told_and_no_other_is_asked(headrace: Unaddressed) -> None:
    (headrace.folder / ".headrace").mkdir()
    for words in (["topics", "list"], ["produce", "t"], ["consume", "t"], ["groups", "list"]):
        complaint = headrace.fails(*words)
        assert "no Kafka was named, and the embedded broker of .headrace is not up" in complaint
        assert "start it with: headrace up; or name another with --kafka, HEADRACE_KAFKA or headrace.toml" in complaint
    assert "headrace run starts it" in headrace.ok("doctor")


def test_where_nothing_is_said_the_usual_address_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_KAFKA", raising=False)
    assert connect(None, None) == Cluster(DEFAULT_KAFKA, {}, is_guess=True)
    with pytest.raises(Unreachable, match=r"no Kafka address was given.*start a broker with: headrace up"):
        Cluster("127.0.0.1:1", {}, is_guess=True).check_reachable()


def test_client_settings_come_from_the_same_places(headrace: Unaddressed, broker_address: str) -> None:
    file = headrace.folder / "headrace.toml"
    file.write_text(f'kafka = "{broker_address}"\n[kafka-settings]\nno.such.setting = 1\n')
    assert "no.such.setting" in headrace.fails("topics", "list")
    file.write_text(f'kafka = "{broker_address}"\n[kafka-settings]\njava.sasl.jaas.config = "Spark\'s alone"\n')
    headrace.ok("topics", "list")
    headrace.variables["HEADRACE_KAFKA_SECURITY_PROTOCOL"] = "nonsense"
    assert "security.protocol" in headrace.fails("topics", "list")
    headrace.ok("topics", "list", "--kafka-set", "security.protocol=PLAINTEXT")
