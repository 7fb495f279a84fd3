"""The processes of tests/test_supervised.py: each does one thing that a process may do."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.errors import InputError, Unreachable
from headrace.supervised import Supervisor


def works(supervisor: Supervisor, task: Mapping[str, Any]) -> None:
    """Reports until it is stopped, and leaves a file when it is."""
    beats = 0
    while not supervisor.wait(0.02):
        beats += 1
        supervisor.report(beats=beats, word=task["word"])
    Path(task["file"]).write_text("finished")


def remarks_and_ends(supervisor: Supervisor, task: Mapping[str, Any]) -> None:
    supervisor.remark("all is done")


def raises(supervisor: Supervisor, task: Mapping[str, Any]) -> None:
    raise ValueError("a defect")


def refuses(supervisor: Supervisor, task: Mapping[str, Any]) -> None:
    raise InputError("the task is wrong", next_step="type another")


def misses_kafka(supervisor: Supervisor, task: Mapping[str, Any]) -> None:
    """Until the file exists."""
    if not Path(task["file"]).exists():
        raise Unreachable("no Kafka answers")
    supervisor.report(found=True)
    supervisor.wait(60)


def ignores_its_end(supervisor: Supervisor, task: Mapping[str, Any]) -> None:
    supervisor.report(pid=os.getpid())
    while True:
        time.sleep(1)
