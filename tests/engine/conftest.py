"""The settings to run against the shared broker."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from headrace.config.run import RunConfig


@pytest.fixture
def config(broker_address: str, tmp_path: Path) -> RunConfig:
    """A run against the shared broker, with a home of its own."""
    return RunConfig(kafka=broker_address, home=tmp_path / "home")


@pytest.fixture
def prefix() -> str:
    """Of the topics of one test, since all share a broker."""
    return f"t{uuid.uuid4().hex[:8]}."
