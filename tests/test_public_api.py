"""What `import headrace` gives: the names that are listed, documented, and nothing that costs time."""

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import headrace
from headrace import errors, suggestions

DRAWN_ERROR = r"^((?:[│ ]   )*(?:[├└]── )?)([A-Z]\w+)(?:$| {2,})"
DOCS = Path(__file__).parent.parent / "docs"


def test_all_names_every_public_name_and_no_other() -> None:
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None
    public = {name for name in dir(headrace) if name[0] != "_" and not inspect.ismodule(getattr(headrace, name))}
    assert set(headrace.__all__) == public | {"__version__"}
    assert list(headrace.__all__) == sorted(headrace.__all__)


def test_every_public_name_is_in_the_docs_and_the_docs_name_no_other() -> None:
    documented = set(re.findall(r"^\| `headrace\.(\w+)", (DOCS / "api.md").read_text(), re.MULTILINE))
    assert documented == set(headrace.__all__)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("avg", "headrace.mean"),
        ("average", "headrace.mean"),
        ("countDistinct", "headrace.count_distinct"),
        ("collect_list", "headrace.collect"),
        ("tumble", "headrace.tumbling"),
        ("window", "headrace.windowed"),
        ("drop_duplicates", "headrace.dedup"),
        ("union", "headrace.merge"),
        ("lookup", "headrace.enrich"),
        ("stream", "app.stream"),
        ("col", "from pyspark.sql import functions as F"),
        ("windowd", "headrace.windowed"),
        ("TopicNotFoundError", "headrace.TopicNotFound"),
    ],
)
def test_a_near_miss_is_told_the_name_that_was_meant(name: str, meant: str) -> None:
    with pytest.raises(AttributeError, match=rf"module 'headrace' has no attribute '{name}'; .*{re.escape(meant)}"):
        getattr(headrace, name)


def test_every_name_that_is_suggested_exists() -> None:
    for meant in suggestions.NEAR.values():
        assert meant in headrace.__all__
    assert not suggestions.NEAR.keys() & set(headrace.__all__)
    for name in suggestions.OF_APP:
        assert hasattr(headrace.App, name)


def test_every_error_is_exported_and_hangs_in_the_tree_that_is_drawn() -> None:
    assert errors.__doc__ is not None
    drawn: list[tuple[int, str]] = [
        (len(match[1]) // 4, match[2]) for match in re.finditer(DRAWN_ERROR, errors.__doc__, re.MULTILINE)
    ]
    parents: dict[str, str] = {}
    path: list[str] = []
    for depth, name in drawn:
        path[depth:] = [name]
        if depth:
            parents[name] = path[depth - 1]
    raised = [getattr(errors, name) for name in errors.__all__ if name != "Error"]
    assert {kind.__name__: kind.__base__.__name__ for kind in raised if issubclass(kind, Exception)} == parents
    assert set(errors.__all__) <= set(headrace.__all__)


@pytest.mark.parametrize("module", [headrace, errors])
def test_the_old_name_of_an_error_warns(module: ModuleType) -> None:
    with pytest.warns(DeprecationWarning, match="PostgresAway is deprecated: its name is PostgresUnavailable") as told:
        assert module.PostgresAway is headrace.PostgresUnavailable
    assert told[0].filename == __file__
    with pytest.raises(AttributeError, match="no attribute 'Postgres'"):
        _ = module.Postgres


def test_an_error_says_what_is_wrong_and_what_to_type_next_in_one_line() -> None:
    error = headrace.TopicNotFound("topic 'a' does not exist", next_step="create it", code="UNKNOWN")
    assert str(error) == "topic 'a' does not exist; create it"
    assert (error.problem, error.next_step, error.code) == (
        "topic 'a' does not exist",
        "create it",
        "UNKNOWN",
    )
    assert str(headrace.Error("it broke")) == "it broke"


def test_importing_headrace_loads_no_client_and_the_command_none_before_it_runs() -> None:
    script = (
        "import json, sys, headrace; before = list(sys.modules); import headrace.cli;"
        "print(json.dumps([before, list(sys.modules)]))"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, timeout=60)
    library, command = (set(names) for names in json.loads(answer.stdout))
    heavy = {"confluent_kafka", "pyspark", "kio", "asyncio", "rich", "rich.console", "pyarrow", "sqlite3"}
    assert not library & (heavy | {"typer"})
    assert not command & heavy


def test_a_zip_file_is_imported_as_the_tasks_of_a_cluster_do(tmp_path: Path) -> None:
    place = Path(headrace.__file__).parent
    copy = tmp_path / "content" / place.name
    shutil.copytree(place, copy, ignore=shutil.ignore_patterns("__pycache__"))
    archive = shutil.make_archive(str(tmp_path / "headrace"), "zip", copy.parent)
    script = "import headrace, headrace.config; print(headrace.__file__, headrace.count, headrace.config.RunConfig)"
    answer = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": archive},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert answer.stdout.startswith(archive)
