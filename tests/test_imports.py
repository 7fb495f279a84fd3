"""The commands, the harness and the console use the packages below them by their public names alone."""

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import headrace

SOURCE = Path(headrace.__file__).parent
USERS = [name for name in ("cli", "console", "testing") if (SOURCE / name).is_dir()]
FILES = sorted(file for name in USERS for file in (SOURCE / name).rglob("*.py"))


def private_imports(source: str, package: str) -> Iterator[str]:
    """What a module of the package imports from others that is not a public name there."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if is_others(alias.name, package) and alias.name.count(".") > 1:
                    yield f"line {node.lineno}: import {alias.name}"
        elif isinstance(node, ast.ImportFrom) and node.module and is_others(node.module, package):
            for alias in node.names:
                if node.module.count(".") > 1 or alias.name not in import_module(node.module).__all__:
                    yield f"line {node.lineno}: from {node.module} import {alias.name}"


def is_others(module: str, package: str) -> bool:
    return module.split(".")[0] == "headrace" and not f"{module}.".startswith(f"headrace.{package}.")


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_only_public_names_are_imported(file: Path) -> None:
    package = file.relative_to(SOURCE).parts[0]
    assert list(private_imports(file.read_text(), package)) == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("from headrace import App, InputError", 0),
        ("from headrace.config import RunConfig", 0),
        ("import headrace.services", 0),
        ("from headrace.cli.output import note", 0),
        ("from pathlib import Path", 0),
        ("import headrace.services.home", 1),
        ("from headrace.config.run import RunConfig", 1),
        ("from headrace.config import run", 1),
        ("from headrace import config", 1),
        ("def late():\n    from headrace.engine.run import runner", 1),
    ],
)
def test_a_private_import_is_found(source: str, count: int) -> None:
    assert len(list(private_imports(source, "cli"))) == count


@pytest.mark.parametrize(
    "package", ["broker", "clients", "config", "delivery", "engine", "services", "tables", "testing", "topology"]
)
def test_every_public_name_of_a_package_exists(package: str) -> None:
    module = import_module(f"headrace.{package}")
    for name in module.__all__:
        assert getattr(module, name) is not None
        assert name in dir(module)
