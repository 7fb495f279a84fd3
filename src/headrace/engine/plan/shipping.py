"""How code reaches the Python processes that run it: the user's file with each function, Headrace as an archive.

A function of the user's that Spark runs in Python is sent to processes that cannot import the file that contains it:
the file was loaded by its path. So modules of the app's folder are sent by value, on one machine and on
a cluster. To a cluster Headrace itself is sent too; other packages must be installed there, which is checked first.
"""

import ast
import atexit
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import headrace
from headrace.engine.spark_private.process import send_by_value
from headrace.errors import EngineError
from headrace.topology import Topology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["check_packages", "pack_users_code", "send_headrace"]

HEADRACE = Path(headrace.__file__).parent
FOR_ARROW = ("pyarrow", "pandas")
"""What PySpark itself needs in a process that runs Python on rows."""
FOR_OPERATORS = ("google.protobuf", "polars")
"""What Headrace's operators need, and PySpark where they keep state."""


def pack_users_code(topology: Topology) -> None:
    """Send the modules of the app's folder by value from now on."""
    folders = _folders(topology)
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file is not None and _is_users(Path(file), folders):
            send_by_value(module)


def send_headrace(spark: "SparkSession") -> None:
    """Make Headrace importable in the tasks of a cluster, in the version that runs here."""
    scratch = Path(tempfile.mkdtemp(prefix="headrace-"))
    # Workers can fetch it at any time: it is kept until this process ends.
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    copy = scratch / "content" / HEADRACE.name
    shutil.copytree(HEADRACE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    archive = shutil.make_archive(str(scratch / f"headrace-{headrace.__version__}"), "zip", copy.parent)
    spark.sparkContext.addPyFile(archive)


def check_packages(spark: "SparkSession", topology: Topology, operators: bool = False) -> None:
    """Refuse to start where a worker lacks a package that the app's files import, or Headrace's operators."""
    wanted = [*FOR_ARROW, *(FOR_OPERATORS if operators else ()), *_imported_packages(topology)]
    tasks = max(spark.sparkContext.defaultParallelism, 1)
    probes = spark.sparkContext.parallelize(range(tasks), tasks)
    try:
        missing = sorted({name for found in probes.map(lambda _: _missing(wanted)).collect() for name in found})
    except Exception as error:
        said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise EngineError(
            f"Python does not run on the workers of {spark.sparkContext.master}: {said}",
            next_step="set spark.pyspark.python to the Python of the workers; it is "
            f"{spark.conf.get('spark.pyspark.python', '') or 'not set'}",
        ) from error
    if missing:
        raise EngineError(
            f"packages are missing on the workers of {spark.sparkContext.master}: {', '.join(missing)}",
            next_step="install them there, for the Python that spark.pyspark.python names",
        )


def _missing(names: Iterable[str]) -> list[str]:
    return [name for name in names if not _is_there(name)]


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # what it is part of is not there
        return False


def _imported_packages(topology: Topology) -> list[str]:
    """The packages outside the standard library that the app's own files import at their top."""
    folders = _folders(topology)
    found: dict[str, None] = {}
    for file in sorted({node.place.file for node in topology.nodes.values()}):
        tree = ast.parse(Path(file).read_bytes()) if Path(file).is_file() else ast.Module([], [])
        for statement in tree.body:
            if isinstance(statement, ast.Import):
                found |= dict.fromkeys(alias.name.partition(".")[0] for alias in statement.names)
            elif isinstance(statement, ast.ImportFrom) and statement.module is not None and not statement.level:
                found[statement.module.partition(".")[0]] = None
    carried = {"headrace", "pyspark", *sys.stdlib_module_names}
    return [name for name in found if name not in carried and not _is_users_module(name, folders)]


def _is_users_module(name: str, folders: set[Path]) -> bool:
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is not None and _is_users(Path(file), folders)


def _folders(topology: Topology) -> set[Path]:
    return {Path(node.place.file).absolute().parent for node in topology.nodes.values()}


def _is_users(file: Path, folders: set[Path]) -> bool:
    file = file.absolute()
    if file.is_relative_to(HEADRACE) or "site-packages" in file.parts or file.is_relative_to(sys.base_prefix):
        return False
    return any(file.is_relative_to(folder) for folder in folders)
