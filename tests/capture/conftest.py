"""A capture with a schema, a slot and topics of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.capture.capturing import Capturing


@pytest.fixture
def capturing(postgres_dsn: str, broker_address: str, tmp_path: Path) -> Iterator[Capturing]:
    one = Capturing(postgres_dsn, broker_address, tmp_path)
    try:
        yield one
    finally:
        one.close()
