"""The package as a user gets it: what the wheel says, and that it works where nothing else of this repository is."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PLUGIN = ROOT / "src" / "headrace" / "testing" / "plugin.py"

APP = """
import headrace as hr

app = hr.App("orders")
orders = app.topic("orders", "id STRING, customer STRING, amount BIGINT", key="customer")


@app.stream(key="customer")
def large(orders):
    return orders.where("amount > 100")


@app.stream(key="customer")
def doubled(large):
    return large.selectExpr("customer", "2 * amount AS amount")
"""
TEST = """
from pathlib import Path
import sys

import headrace
from orders import app, doubled, orders


def test_large_orders_are_doubled(headrace_harness):
    assert Path(headrace.__file__).is_relative_to(sys.prefix)
    harness = headrace_harness(app)
    harness.send(orders, [{"id": "1", "customer": "a", "amount": 50}, {"id": "2", "customer": "b", "amount": 150}])
    harness.settle()
    assert harness.rows(doubled) == [{"customer": "b", "amount": 300}]
"""


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_import_is_declared() -> None:
    declared = {normal(re.match(r"[\w.-]+", line)[0]) for line in PROJECT["dependencies"]}  # type: ignore[index]
    distributions = packages_distributions()
    undeclared = set()
    for path in (ROOT / "src").rglob("*.py"):
        for name in (
            {module.partition(".")[0] for module in imports(path)} - set(sys.stdlib_module_names) - {"headrace"}
        ):
            if path == PLUGIN and name == "pytest":
                continue  # pytest itself is what imports this file
            if not declared & {normal(found) for found in distributions.get(name, [name])}:
                undeclared.add((name, str(path.relative_to(ROOT))))
    assert undeclared == set()


def test_every_dependency_is_pinned_at_or_above_its_lower_bound() -> None:
    from packaging.requirements import Requirement

    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {normal(name): version for name, _, version in (line.partition("==") for line in lines)}
    for line in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]:
        requirement = Requirement(line)
        assert requirement.specifier.contains(pinned[normal(requirement.name)]), line


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as pip builds it, but by the tools that are installed here: the network is not needed."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_the_description_works_on_a_package_index(metadata: Message) -> None:
    text = metadata.get_payload()
    assert isinstance(text, str)
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert text.startswith("# Headrace")
    assert "pip install headrace" in text
    assert [target for target in re.findall(r"\]\(([^)]*)\)", text) if not target.startswith("https://")] == []
    assert "make setup" not in text  # there is no clone


def test_the_index_can_classify_it(metadata: Message) -> None:
    from trove_classifiers import classifiers

    given = metadata.get_all("Classifier") or []
    assert "Typing :: Typed" in given
    assert set(given) <= classifiers
    assert "kafka" in metadata["Keywords"]


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    sources = {
        str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*") if "__pycache__" not in path.parts
    }
    assert {name for name in names if not name.split("/")[0].endswith(".dist-info")} <= sources
    assert {name for name in sources if name.endswith(".py")} | {"headrace/py.typed"} <= set(names)


@pytest.mark.timeout(300)
def test_the_script_that_starts_workers_can_be_executed(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        script = archive.getinfo("headrace/engine/spark_private/worker-python")
    assert script.external_attr >> 16 & 0o111 == 0o111


def test_the_wheel_alone_runs_an_app_and_its_plugin(wheel: Path, tmp_path: Path) -> None:
    """In an environment of its own. What Headrace depends on is taken from here, Headrace itself from the wheel."""
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(environment), "platbase": str(environment)}))
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-index", "--no-deps", str(wheel)]
    done = subprocess.run(install, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    # A plain path: files that lead to other folders, such as an editable Headrace, are not read there.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))

    work = tmp_path / "work"
    work.mkdir()
    (work / "orders.py").write_text(APP)
    (work / "test_orders.py").write_text(TEST)
    alone = {"PATH": f"{environment / 'bin'}:/usr/bin:/bin"}
    for name in ("HOME", "JAVA_HOME", "XDG_CACHE_HOME"):
        if name in os.environ:
            alone[name] = os.environ[name]

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=work, env=alone, capture_output=True, text=True, timeout=250)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    where = run(str(python), "-c", "import headrace; print(headrace.__file__)")
    assert Path(where.strip()) == packages / "headrace" / "__init__.py"
    assert "2 nodes" in run(str(environment / "bin" / "headrace"), "check", "orders.py")
    assert "1 passed" in run(str(python), "-m", "pytest", "-p", "no:cacheprovider", "test_orders.py")
