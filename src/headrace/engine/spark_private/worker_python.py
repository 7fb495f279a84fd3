"""The Python of Spark's workers in local mode.

Spark puts PySpark as a zip first on the path of each Python process that it starts. The zip has sources only, so each
process compiles PySpark anew, for about a second of CPU. The installed PySpark is the same and is compiled: the script
`worker-python` takes the zips off the path.
"""

import os
import site
import sys
from pathlib import Path

import pyspark

__all__ = ["quick_python"]

SCRIPT = Path(__file__).with_name("worker-python")


def quick_python() -> str:
    """The program that starts this Python as a worker; this Python itself where a worker would not find PySpark."""
    installed = Path(pyspark.__file__).parents[1]
    if str(installed) not in [*site.getsitepackages(), site.getusersitepackages()] or not os.access(SCRIPT, os.X_OK):
        return sys.executable
    os.environ["PYSPARK_WORKER_PYTHON"] = sys.executable
    return str(SCRIPT)
