"""Results as Markdown: one section a scenario, each replaced when its scenario is run again."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import confluent_kafka
import psutil
from tests import peers

from benchmarks.measure import Figures

RESULTS = Path(__file__).parent / "RESULTS.md"
HEADING = """\
# Speed, measured

Written by `make bench` (`python -m benchmarks.broker`, `.engine`, `.operators`, `.nexmark`, `.capture`);
[README.md](README.md) says how each figure is taken. Medians, with the range over the rounds in brackets, beside a
peer in the same run.

"Kafka" is Apache Kafka with its defaults, which acknowledges before anything is on disk; "Kafka, synced" is the same
broker with `flush.messages=1`. Headrace syncs before it acknowledges, except in rows that say "neither synced": there
it runs with `--durability os`.
"""
ORDER = (
    *("produce-java", "produce-librdkafka", "consume-java", "consume-librdkafka", "latency", "startup", "memory"),
    "share-consumers",
    *("engine-stateless", "engine-windowed", "engine-views", "engine-latency", "engine-start"),
    *("topology", "topology-alone"),
    *("operators-windows", "operators-joins", "operators-small", "nexmark"),
    "capture",
)
"""Every scenario there is, as their sections follow each other."""


@dataclass(frozen=True)
class Row:
    case: str
    measure: str
    ours: str
    peer: str = ""
    ratio: str = ""
    wanted: str = ""
    verdict: str = ""

    def line(self) -> str:
        cells = (self.case, self.measure, self.ours, self.peer, self.ratio, self.wanted, self.verdict)
        return f"| {' | '.join(cells)} |"


@dataclass
class Section:
    key: str
    title: str
    notes: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    peer: str = "Kafka"

    def compare(
        self,
        case: str,
        measure: str,
        ours: Figures,
        peer: Figures,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        digits: int = 0,
        unit: str = "",
        remark: str = "",
    ) -> None:
        """A row that holds the ratio to a peer against a limit."""
        ratio = ours.median / peer.median if peer.median else float("inf")
        wanted, held = "", True
        if at_least is not None:
            wanted, held = f"≥ {at_least:g} x", ratio >= at_least
        if at_most is not None:
            wanted, held = f"≤ {at_most:g} x", ratio <= at_most
        verdict = ("pass" if held else f"**fail**{remark}") if wanted else ""
        shown = (ours.show(digits, unit), peer.show(digits, unit))
        self.rows.append(Row(case, measure, *shown, f"{ratio:.2f} x", wanted, verdict))

    def hold(
        self,
        case: str,
        measure: str,
        ours: Figures,
        *,
        at_most: float | None = None,
        peer: Figures | None = None,
        digits: int = 2,
        unit: str = "",
    ) -> None:
        """A row that holds a figure of its own against a limit; the peer's stands beside it for scale."""
        wanted = verdict = ""
        if at_most is not None:
            wanted = f"≤ {at_most:,g}{unit}"
            verdict = "pass" if ours.median <= at_most else "**fail**"
        other = peer.show(digits, unit) if peer else ""
        ratio = f"{ours.median / peer.median:.2f} x" if peer and peer.median else ""
        self.rows.append(Row(case, measure, ours.show(digits, unit), other, ratio, wanted, verdict))

    def reach(self, case: str, measure: str, ours: Figures, least: float, *, unit: str = "") -> None:
        """A row that holds a figure of its own against what it is to reach."""
        verdict = "pass" if ours.median >= least else "**fail**"
        self.rows.append(Row(case, measure, ours.show(0, unit), "", "", f"≥ {least:,g}{unit}", verdict))

    def markdown(self, command: str, facts: str) -> str:
        lines = [f"## {self.title}", "", f"`{command}`", ""]
        lines += [*self.notes, ""] if self.notes else []
        lines += [Row("case", "measure", "Headrace", self.peer, "ratio", "wanted", "").line(), "|" + "---|" * 7]
        lines += [row.line() for row in self.rows]
        return "\n".join([*lines, "", facts, ""])


def write(section: Section, command: str, facts: str, path: Path = RESULTS, order: Sequence[str] = ORDER) -> None:
    text = path.read_text() if path.exists() else ""
    pattern = re.compile(r"<!-- begin (\S+) -->\n(.*?)<!-- end \1 -->\n", re.DOTALL)
    sections = dict(pattern.findall(text))
    sections[section.key] = section.markdown(command, facts)
    known = [key for key in order if key in sections]
    body = "\n".join(f"<!-- begin {key} -->\n{sections[key]}<!-- end {key} -->\n" for key in known)
    path.write_text(f"{HEADING}\n{body}")


def machine_facts(folder: Path) -> str:
    """Where the figures come from, in a line: nothing that dates or names the machine."""
    device, kind = filesystem(folder)
    virtual = Path(device).name.startswith(("vd", "xvd"))
    memory = round(psutil.virtual_memory().total / 2**30)
    java = subprocess.run([peers.java(), "-version"], capture_output=True, text=True, check=True).stderr
    release = re.search(r'"([^"]+)"', java)
    return (
        f"{os.cpu_count()} cores, {memory} GiB of memory, {kind} on a "
        f"{'virtual ' if virtual else ''}disk; Headrace {version('headrace')} on Python {platform.python_version()}, "
        f"PySpark {version('pyspark')}, "
        f"Apache Kafka 4.3.0 on Java {release.group(1) if release else '?'}, kafka-clients 4.3.0, "
        f"librdkafka {confluent_kafka.libversion()[0]}."
    )


def filesystem(folder: Path) -> tuple[str, str]:
    """The device and the kind of the file system that holds a folder."""
    mounted = [part for part in psutil.disk_partitions(all=True) if folder.is_relative_to(part.mountpoint)]
    nearest = max(mounted, key=lambda part: len(part.mountpoint))
    return nearest.device, nearest.fstype
