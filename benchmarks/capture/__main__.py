"""`python -m benchmarks.capture [scenario ...]`: from PostgreSQL to the embedded broker, exactly once."""

from benchmarks.capture import streams
from benchmarks.scenarios import main

SCENARIOS = {
    "capture": streams.measured,
}

if __name__ == "__main__":
    main("benchmarks.capture", __doc__ or "", SCENARIOS, rounds=1)
