"""The command `headrace` with a mutant's change: python -m tests.broker.faults.mutated MUTANT ARGUMENTS..."""

import sys

from headrace.cli import app
from tests.broker.faults.mutants import mutated

if __name__ == "__main__":
    name = sys.argv.pop(1)
    with mutated(name):
        app()
