"""The process that forks Spark's Python workers: PySpark's own, with a quicker end of each task.

PySpark's daemon collects garbage after every task of a worker that is kept. With polars, pyarrow and pandas imported
that walks some 96,000 objects, which takes longer than most tasks of a small batch. What a worker has imported is
frozen instead: the collector does not look at it again. Spark starts this module as `spark.python.daemon.module`.
"""

import gc
import sys
from types import SimpleNamespace

from pyspark import daemon

__all__ = ["collect_garbage"]

_modules_frozen = 0


def collect_garbage() -> None:
    """Collect garbage; freeze what is left if modules were imported since the last time."""
    global _modules_frozen
    gc.collect()
    if len(sys.modules) != _modules_frozen:
        _modules_frozen = len(sys.modules)
        gc.freeze()


def main() -> None:
    # The only use that the daemon makes of the module is `gc.collect()` after a task.
    setattr(daemon, "gc", SimpleNamespace(collect=collect_garbage))  # noqa: B010 - no public name of PySpark's
    daemon.manager()


if __name__ == "__main__":
    main()
