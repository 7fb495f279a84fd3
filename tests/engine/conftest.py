"""The settings to run against the shared broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config.run import RunConfig


@pytest.fixture
def config(broker_address: str, tmp_path: Path) -> RunConfig:
    """A run against the shared broker, with a home of its own."""
    return RunConfig(kafka=broker_address, home=tmp_path / "home")
