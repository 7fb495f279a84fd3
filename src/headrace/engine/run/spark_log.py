"""What Spark prints goes to a file: on a terminal it would run through the live table, in a test hide the failure."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["spark_log", "spark_log_path"]

LARGEST_LOG = 10 << 20


def spark_log_path(home: Path) -> Path:
    return home.absolute() / "logs" / "spark.log"


@contextmanager
def spark_log(home: Path) -> Iterator[None]:
    """Processes that are started meanwhile write their stderr to Spark's log; this process keeps its own."""
    path = spark_log_path(home)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > LARGEST_LOG:
        path.replace(path.with_name("spark.log.1"))
    sys.stderr.flush()
    terminal = os.dup(2)
    ours = sys.stderr
    with path.open("ab") as log, os.fdopen(os.dup(terminal), "w", buffering=1) as still_ours:
        os.dup2(log.fileno(), 2)
        sys.stderr = still_ours
        try:
            yield
        finally:
            sys.stderr = ours
            os.dup2(terminal, 2)
            os.close(terminal)
