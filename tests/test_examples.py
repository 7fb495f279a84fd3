"""The examples run as they are, and say so."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_the_demo_of_the_log_ends_by_itself_with_nothing_lost() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "log_demo.py")], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every event reached both groups" in done.stdout
    assert done.stderr == ""
