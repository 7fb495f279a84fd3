"""`python -m benchmarks.engine [scenario ...]`: Headrace beside PySpark written by hand, on the same machine."""

from functools import partial

from benchmarks.engine import latency, rates, start, views
from benchmarks.engine.topology import memory
from benchmarks.engine.topology import scenario as topology
from benchmarks.scenarios import main

SCENARIOS = {
    "engine-stateless": partial(rates.run, windowed=False),
    "engine-windowed": partial(rates.run, windowed=True),
    "engine-views": views.run,
    "engine-latency": latency.run,
    "engine-start": start.run,
    "topology": topology.run,
    "topology-alone": topology.run_alone,
    "topology-memory": memory.run,
}

if __name__ == "__main__":
    main("benchmarks.engine", __doc__, SCENARIOS, rounds=5, own_rounds={"topology": 3, "topology-alone": 3})
