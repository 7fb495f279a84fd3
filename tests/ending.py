"""Ends what a test started, whatever became of the test: asked first, so that it takes its own services with it."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from signal import SIGTERM, Signals

PATIENCE = 60.0


def end(process: "subprocess.Popen[bytes] | subprocess.Popen[str]", how: Signals = SIGTERM) -> None:
    """A signal it can answer to, and SIGKILL only if that does not help."""
    if process.poll() is None:
        process.send_signal(how)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def down(folder: Path, environment: Mapping[str, str] | None = None) -> None:
    """Stop the services of the home folder in a folder, if any are left: those of a run that was killed are."""
    words = [sys.executable, "-m", "headrace", "down"]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
