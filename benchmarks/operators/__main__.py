"""`python -m benchmarks.operators [scenario ...]`: the operators beside Spark's own and beside Python for each key."""

from benchmarks.operators import windows
from benchmarks.scenarios import main

SCENARIOS = {
    "operators-windows": windows.rates,
    "operators-joins": windows.enrichment,
    "operators-small": windows.small,
}

if __name__ == "__main__":
    main("benchmarks.operators", __doc__, SCENARIOS, rounds=3)
