"""The architecture page says what the tree has, and no code asks a node for its class where it must not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "headrace"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
QUESTIONS = (
    "a Kafka API", "a window", "a source", "a sink", "a command", "a setting", "a fault test", "a benchmark",
    "a process beside Spark", "an error", "a page of docs",
)  # fmt: skip
KINDS = {
    "Node", "Channel", "Source", "Topic", "TableTopic", "Files", "Rate", "FunctionNode", "Step", "QueryNode", "Stream",
    "TableNode", "View", "Sink", "TopicSink", "PostgresSink",
}  # fmt: skip
MAY_ASK = ("topology", "engine/adapters.py", "engine/read/rate_source.py", "engine/read/files_source.py")


def places(answer: str) -> list[str]:
    return [name for name in re.findall(r"`([^`]+)`", answer) if "/" in name or name.endswith((".py", ".md"))]


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_page_says_where_to_add_it_and_the_place_exists(question: str) -> None:
    (answer,) = re.findall(rf"^\| Where would I add {re.escape(question)}\? \| (.+) \|$", PAGE, re.MULTILINE)
    named = places(answer)
    assert named
    for name in named:
        if name == "__main__.py":
            continue
        assert (ROOT / name).exists(), f"{name} does not exist"


def test_every_function_on_the_path_of_a_record_exists() -> None:
    section = PAGE.partition("## The path of a record")[2].partition("\n## ")[0]
    found = re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`(?:: `([\w.]+)`)?", section)
    assert len(found) > 12
    for file, name in found:
        path = SOURCE / file
        assert path.exists(), f"{file} does not exist"
        if name:
            *owner, last = name.split(".")
            text = path.read_text()
            assert re.search(rf"^ *def {last}\b", text, re.MULTILINE), f"{file} has no {name}"
            assert not owner or re.search(rf"^class {owner[0]}\b", text, re.MULTILINE), f"{file} has no {owner[0]}"


def test_every_package_is_drawn() -> None:
    for folder in SOURCE.iterdir():
        if (folder / "__init__.py").exists():
            assert re.search(rf'\b{folder.name}\["?{folder.name}', PAGE), f"{folder.name} is not in the drawing"


def asked_classes(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines that ask something for a class of the topology: isinstance, match, or a comparison of `.kind`."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("isinstance", "issubclass")
        ):
            names = {one.id for one in ast.walk(node.args[1]) if isinstance(one, ast.Name)}
            names |= {one.attr for one in ast.walk(node.args[1]) if isinstance(one, ast.Attribute)}
            for name in names & KINDS:
                yield node.lineno, name
        elif isinstance(node, ast.MatchClass):
            name = node.cls.id if isinstance(node.cls, ast.Name) else ""
            if name in KINDS:
                yield node.cls.lineno, name
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            kinds = [one for one in sides if isinstance(one, ast.Attribute) and one.attr == "kind"]
            texts = [one for one in sides if isinstance(one, ast.Constant) and one.value in NODE_KINDS]
            if kinds and texts:
                yield node.lineno, ".kind"


NODE_KINDS = ("topic", "table", "files", "rate", "step", "stream", "view")


def test_no_code_outside_of_topology_and_the_adapters_asks_a_node_for_its_class() -> None:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if name.startswith(MAY_ASK) or name.startswith("broker/"):
            continue
        tree = ast.parse(path.read_text())
        # A class of that name that is the module's own, such as the Table of a node's function, is another one.
        own = {one.name for one in ast.walk(tree) if isinstance(one, ast.ClassDef)}
        found += [f"{name}:{line} asks for {kind}" for line, kind in asked_classes(tree) if kind not in own]
    assert found == []


def test_the_check_finds_each_way_of_asking() -> None:
    text = """
if isinstance(node, View | Stream): ...
match node:
    case Topic(): ...
if node.kind == "view": ...
if isinstance(node, topology.Rate): ...
"""
    assert sorted(kind for _, kind in asked_classes(ast.parse(text))) == [".kind", "Rate", "Stream", "Topic", "View"]
