"""The connector's jars: kept, checked, and fetched with words that help when they cannot be."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from pathlib import Path

import pytest

from headrace.engine.run import jars
from headrace.engine.run.jars import CONNECTORS, Jar, connector_jars
from headrace.errors import EngineError

VERSION = "4.3.0"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache that holds the jars already."""
    (tmp_path / "jars").mkdir()
    shutil.copytree(connector_jars(VERSION)[0].parent, tmp_path / "jars" / f"spark-{VERSION}")
    return tmp_path


def a_java(folder: Path, script: str) -> None:
    folder.mkdir(exist_ok=True)
    program = folder / "java"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def test_what_is_there_is_not_fetched(cache: Path) -> None:
    told: list[Jar] = []
    found = connector_jars(VERSION, lambda jar, *_: told.append(jar), cache)
    assert [path.name for path in found] == [jar.file_name for jar in CONNECTORS[VERSION]]
    assert told == []
    for path, jar in zip(found, CONNECTORS[VERSION], strict=True):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == jar.sha256


def test_a_damaged_jar_is_fetched_again_and_nothing_else(cache: Path) -> None:
    damaged = CONNECTORS[VERSION][-1]
    path = cache / "jars" / f"spark-{VERSION}" / damaged.file_name
    path.write_bytes(path.read_bytes()[:-1])
    told: list[tuple[Jar, int, int]] = []
    connector_jars(VERSION, lambda *progress: told.append(progress), cache)
    assert told == [(damaged, 3, 4)]
    assert hashlib.sha256(path.read_bytes()).hexdigest() == damaged.sha256


def test_offline_the_message_says_what_to_copy_where(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = CONNECTORS[VERSION][0]
    (cache / "jars" / f"spark-{VERSION}" / missing.file_name).unlink()
    answers = """if [ "$1" = -version ]; then echo 'openjdk version "21.0.1"' >&2; exit 0; fi"""
    a_java(tmp_path / "bin", f"{answers}; echo 'Host repo not found'; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(
        EngineError, match=rf"{missing.module}.*could not be downloaded.*copy {missing.file_name} to {cache}"
    ):
        connector_jars(VERSION, cache=cache)


def test_a_jar_that_is_not_the_pinned_one_is_refused(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = tmp_path / "wrong.jar"
    wrong.write_bytes(b"not a jar")
    monkeypatch.setattr(jars, "_fetch", lambda *_: wrong)
    missing = CONNECTORS[VERSION][0]
    (cache / "jars" / f"spark-{VERSION}" / missing.file_name).unlink()
    with pytest.raises(EngineError, match="does not have the pinned checksum"):
        connector_jars(VERSION, cache=cache)
    assert not (cache / "jars" / f"spark-{VERSION}" / missing.file_name).exists()


def test_another_spark_is_refused_by_name() -> None:
    with pytest.raises(EngineError, match=r"no Kafka connector is known for Spark 3\.5\.1; install pyspark==4\.3\.0"):
        connector_jars("3.5.1")
