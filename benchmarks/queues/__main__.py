"""`python -m benchmarks.queues [--quick] [scenario ...]`: queues beside Apache Kafka's, same machine and disk."""

from benchmarks.broker.__main__ import main
from benchmarks.queues import share

SCENARIOS = {"share-consumers": share.run}

if __name__ == "__main__":
    main("queues", SCENARIOS)
