"""Test a topology on real Spark and a real broker: send rows, settle, move time, look at what came out.

    from headrace.testing import Harness

    with Harness(app) as harness:
        harness.send(payments, [{"id": "1", "card": "a", "at": "2026-01-01T12:00:00Z"}])
        harness.advance("2026-01-01T13:00:00Z")
        assert harness.rows(bursts) == [...]

In pytest the fixture `headrace_harness` makes harnesses that share one Spark session and one broker.
"""

from headrace.lazy import public_names

# The plugin lives here too, and is loaded by every pytest where Headrace is installed: it must cost nothing.
__all__, __getattr__, __dir__ = public_names(__name__)
