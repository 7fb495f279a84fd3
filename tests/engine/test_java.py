"""The Java that Spark runs on: which one is used, and how one is unpacked where there is none."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.config.cache import cache_folder
from headrace.config.java import find_java
from headrace.engine.run.jars import CONNECTORS, connector_jars
from headrace.errors import EngineError
from tests.conftest import COMMAND

APP = """
import os
import headrace as hr
from headrace.testing import Harness

app = hr.App("small")
events = app.topic("events", "n BIGINT, k STRING", key="k")


@app.stream(key="k")
def doubled(events):
    return events.selectExpr("k", "2 * n AS n")


if __name__ == "__main__":
    with Harness(app) as harness:
        harness.send(events, {"n": 21, "k": "a"})
        harness.settle()
        assert harness.rows(doubled) == [{"k": "a", "n": 42}]
        java = harness._spark._jvm
        factory = java.javax.net.ssl.TrustManagerFactory.getInstance("PKIX")
        factory.init(None)
        authorities = len(factory.getTrustManagers()[0].getAcceptedIssuers())
        print(java.System.getProperty("java.home"), authorities)
"""


def a_program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def a_java(home: Path, version: str) -> str:
    """A program that says it is this version of Java."""
    a_program(home / "bin" / "java", f"echo 'openjdk version \"{version}\" 2025-01-01' >&2")
    return str(home / "bin" / "java")


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No Java anywhere: a folder to put some into, whose `path/bin` is the PATH."""
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("version", "fits"), [("1.8.0_402", False), ("11.0.2", False), ("17.0.15", True), ("25", True)]
)
def test_java_must_be_new_enough(version: str, fits: bool, places: Path) -> None:
    java = a_java(places / "path", version)
    if fits:
        assert find_java().command == java
    else:
        with pytest.raises(
            EngineError, match=f"Spark needs Java 17 or newer, and there is none: {java} is .* {version}"
        ):
            find_java()


def test_java_home_comes_before_the_path_and_both_before_the_unpacked_one(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked = a_java(places / "cache" / "headrace" / "java" / "home", "17.0.1")
    assert find_java().command == unpacked
    on_path = a_java(places / "path", "17.0.2")
    assert find_java().command == on_path
    named = a_java(places / "named", "17.0.3")
    monkeypatch.setenv("JAVA_HOME", str(places / "named"))
    assert find_java().command == named


def test_one_that_is_too_old_is_reported_and_not_used(
    places: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    old = a_java(places / "named", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(places / "named"))
    older = a_java(places / "path", "1.8.0")
    with pytest.raises(EngineError, match=f"there is none: {old} is version 11.0.2, {older} is version 1.8.0"):
        find_java()
    home = places / "cache" / "headrace" / "java" / "home"
    unpacked = a_java(home, "17.0.1")
    find_java().use()
    assert os.environ["JAVA_HOME"] == str(home)
    assert [record.getMessage() for record in caplog.records] == [
        f"{old} is version 11.0.2: Spark needs 17 or newer and runs on {unpacked}",
        f"{older} is version 1.8.0: Spark needs 17 or newer and runs on {unpacked}",
    ]
    monkeypatch.setenv("JAVA_HOME", str(places / "named"))
    a_java(places / "path", "21")
    find_java().use()
    # Spark takes the one on the PATH if JAVA_HOME is not set.
    assert "JAVA_HOME" not in os.environ


def test_a_java_home_without_java_is_reported(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(places))
    with pytest.raises(EngineError, match=rf"there is none: JAVA_HOME \({places}\) has no bin/java"):
        find_java()


@pytest.mark.parametrize(
    ("program", "advice"),
    [
        ("dnf", "type: dnf install java-21-openjdk-headless"),
        ("apk", "type: apk add openjdk17-jre-headless"),
        ("brew", "type: brew install openjdk@17"),
        (None, "install Java 17 or newer, or set JAVA_HOME"),
    ],
)
def test_without_apt_the_command_of_the_platform_is_named(program: str | None, advice: str, places: Path) -> None:
    if program:
        a_program(places / "path" / "bin" / program, "exit 1")
    with pytest.raises(EngineError, match="there is none on the PATH") as raised:
        find_java()
    assert raised.value.next_step is not None
    assert raised.value.next_step.startswith(advice)
    done = subprocess.run([COMMAND, "doctor", "--install-java"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert advice in done.stderr


@pytest.fixture
def hidden(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a machine without Java, whose cache has the connector's jars.

    Packages that an earlier run downloaded are used again if apt still offers them.
    """
    programs = tmp_path / "bin"
    programs.mkdir()
    for folder in map(Path, os.environ["PATH"].split(os.pathsep)):
        for program in folder.iterdir() if folder.is_dir() else ():
            link = programs / program.name
            if program.name != "java" and not link.is_symlink():
                link.symlink_to(program)
    cache = tmp_path / "cache" / "headrace"
    (spark,) = CONNECTORS
    shutil.copytree(connector_jars(spark)[0].parent, cache / "jars" / f"spark-{spark}")
    kept, packages = cache_folder() / "java" / "packages", cache / "java" / "packages"
    packages.mkdir(parents=True)
    for package in kept.glob("*.deb"):
        shutil.copyfile(package, packages / package.name)
    inherited = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    yield inherited | {"PATH": str(programs), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    kept.mkdir(parents=True, exist_ok=True)
    for package in packages.glob("*.deb"):
        if not (kept / package.name).exists():
            shutil.copyfile(package, kept / package.name)


@pytest.mark.timeout(900)
def test_an_app_runs_on_a_java_that_was_unpacked(hidden: dict[str, str], tmp_path: Path) -> None:
    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=hidden, cwd=tmp_path, capture_output=True, text=True, timeout=800)

    checks = {check["name"]: check for check in json.loads(run(COMMAND, "doctor", "--json").stdout)["checks"]}
    assert not checks["java"]["ok"]
    assert "headrace doctor --install-java" in checks["java"]["next_step"]

    installed = run(COMMAND, "doctor", "--install-java")
    home = tmp_path / "cache" / "headrace" / "java" / "home"
    assert installed.returncode == 0, installed.stderr
    assert str(home) in installed.stdout
    assert [path for path in home.rglob("*") if path.is_symlink() and not path.exists()] == []
    assert run(COMMAND, "doctor", "--install-java").stderr == ""  # nothing is downloaded twice

    (tmp_path / "small.py").write_text(APP)
    done = run(sys.executable, "small.py")
    assert done.returncode == 0, done.stderr
    java_home, authorities = done.stdout.splitlines()[-1].split()
    assert java_home == str(home)
    assert int(authorities) > 50  # without its own list of them, Java could not fetch anything over TLS
