"""Test a topology on real Spark and a real broker: send rows, settle, move time, look at what came out.

    from headrace.testing import Harness

    with Harness(app) as harness:
        harness.send(payments, [{"id": "1", "card": "a", "at": "2026-01-01T12:00:00Z"}])
        harness.advance("2026-01-01T13:00:00Z")
        assert harness.rows(bursts) == [...]

In pytest the fixture `headrace_harness` makes harnesses that share one Spark session and one broker.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from headrace.testing.environment import Environment
    from headrace.testing.harness import Harness

__all__ = ["Environment", "Harness"]

_HOMES = {"Environment": "headrace.testing.environment", "Harness": "headrace.testing.harness"}


def __getattr__(name: str) -> typing.Any:
    # The plugin lives here too, and is loaded by every pytest where Headrace is installed: it must cost nothing.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
