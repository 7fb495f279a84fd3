"""What an example gives for the same events, kept in files: `WRITE_GOLDEN=1 pytest tests/examples` writes them anew."""

import json
import os
from pathlib import Path

from headrace.testing import Harness
from headrace.topology import Node

FOLDER = Path(__file__).with_name("golden")
BY_BATCHES = {"revision"}
"""How often a row was told depends on how the events were cut into batches."""


def assert_golden(harness: Harness, name: str, *nodes: Node) -> None:
    """The rows of the nodes are those of the file."""
    found = [
        json.dumps({"node": str(node.name)} | {key: row[key] for key in row if key not in BY_BATCHES}, default=str)
        for node in nodes
        for row in harness.rows(node)
    ]
    found.sort()
    file = FOLDER / f"{name}.jsonl"
    if os.environ.get("WRITE_GOLDEN"):
        file.write_text("".join(f"{line}\n" for line in found))
    assert found == file.read_text().splitlines()
