"""The process of a capture that kills itself at named moments, as a file in its home folder says."""

import json
import os
import random
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.capture import changes, process, snapshot
from headrace.supervised import Supervisor

POINTS = ("opened", "chunk", "before the transaction", "in the transaction", "after the transaction")


def main(supervisor: Supervisor, told: Mapping[str, Any]) -> None:
    plan = Path(told["config"]["home"]) / "crashes.json"
    # Small, so that snapshots and transactions have several parts.
    snapshot.CHUNK_ROWS = 40
    changes.LARGEST_BATCH = 30

    once_per_start = ("opened", "beginning again", "slot dropped", "slot created")

    def reached(point: str) -> None:
        left = json.loads(plan.read_text())
        if left and left[0] == point and (point in once_per_start or random.random() < 0.5):
            part = plan.with_suffix(".part")
            part.write_text(json.dumps(left[1:]))
            part.replace(plan)
            os.kill(os.getpid(), signal.SIGKILL)

    changes.reached = process.reached = reached
    process.main(supervisor, told)
