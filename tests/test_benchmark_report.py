"""Benchmark results: verdicts, and sections that are replaced one by one."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from benchmarks.measure import Figures
from benchmarks.report import Section, write

ORDER = ["first", "second"]


def figures(*values: float) -> Figures:
    return Figures(values)


def test_figures_show_the_median_and_the_range() -> None:
    assert figures(3.0, 1.0, 2.0).show(1, " ms") == "2.0 ms (1.0-3.0)"
    assert figures(1234.4).show(unit="/s") == "1,234/s"


def test_a_ratio_is_held_against_its_limit() -> None:
    section = Section("first", "First")
    section.compare("a", "rate", figures(100), figures(50), at_least=2.0)
    section.compare("a", "rate", figures(99), figures(50), at_least=2.0, remark=", client 95% busy")
    section.compare("a", "CPU", figures(31), figures(50), at_most=0.6)
    section.hold("a", "p50", figures(1.5), at_most=1.5)
    section.hold("a", "p50", figures(1.6), at_most=1.5)
    section.hold("a", "p50", figures(1.6), peer=figures(3.2))
    verdicts = ["pass", "**fail**, client 95% busy", "**fail**", "pass", "**fail**", ""]
    assert [row.verdict for row in section.rows] == verdicts
    assert section.rows[-1].ratio == "0.50 x"


def test_a_section_replaces_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "RESULTS.md"
    write(Section("second", "Second"), "run second", "a machine.", path, ORDER)
    write(Section("first", "First"), "run first", "a machine.", path, ORDER)
    write(Section("second", "Second again"), "run second", "a machine.", path, ORDER)
    text = path.read_text()
    assert text.count("## ") == 2
    assert text.index("## First") < text.index("## Second again")
    assert text.count("<!-- begin second -->") == 1


@pytest.mark.parametrize("file", sorted((Path(__file__).parent.parent / "benchmarks").rglob("*.py")), ids=str)
def test_every_benchmark_can_be_imported(file: Path) -> None:
    """They use names of the engine that may move, and run seldom."""
    if file.name == "__main__.py":
        return
    parts = file.relative_to(Path(__file__).parent.parent).with_suffix("").parts
    importlib.import_module(".".join(part for part in parts if part != "__init__"))
