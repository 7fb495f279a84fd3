"""The examples run as they are, and say so."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_the_demo_of_the_log_ends_by_itself_with_nothing_lost() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "log_demo.py")], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every event reached both groups" in done.stdout
    assert done.stderr == ""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_demo_of_mails_agrees_while_its_workers_are_killed() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "mailing_demo.py"), "--mails", "400"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all counts agree" in done.stdout
