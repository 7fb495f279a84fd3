"""The documentation does what it says.

Every fenced block marked `sh` or `python` in README.md and docs/ is run, in the order of the page, in an
empty folder, against a broker of the page's own. An `output` block right after one is what it must print. A
block that is only to be read is marked `console` or `text`.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.peers import broker_for_tests

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")


class Step(NamedTuple):
    language: str
    text: str
    line: int
    output: str | None


def steps(page: Path) -> Iterator[Step]:
    text = page.read_text()
    blocks = list(BLOCK.finditer(text))
    for block, following in zip_longest(blocks, blocks[1:]):
        if block[1] in ("sh", "python"):
            adjoining = following is not None and not text[block.end() : following.start()].strip()
            output = following[2] if following and adjoining and following[1] == "output" else None
            yield Step(block[1], block[2], text.count("\n", 0, block.start()) + 1, output)


@pytest.mark.parametrize("page", [p for p in PAGES if any(steps(p))], ids=lambda page: page.stem)
def test_the_page_runs(page: Path, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with broker_for_tests(tmp_path / "broker", settings) as server:
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HEADRACE_KAFKA": server.address,
        }
        for step in steps(page):
            text = step.text.replace("127.0.0.1:9092", server.address)
            shell = ["bash", "-euo", "pipefail", "-c"] if step.language == "sh" else [sys.executable, "-c"]
            done = subprocess.run(
                [*shell, text], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
            )
            where = f"{page.name}, line {step.line}"
            assert done.returncode == 0, f"{where} failed:\n{done.stdout}{done.stderr}"
            if step.output is not None:
                assert done.stdout == step.output, f"{where} printed something else"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    targets = [target for target in LINK.findall(page.read_text()) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []
