"""The public names. `__init__.py` reads them here and loads each when it is first used."""

from headrace.testing.environment import Environment as Environment
from headrace.testing.harness import Harness as Harness
