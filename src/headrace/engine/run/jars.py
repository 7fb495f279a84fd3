"""The jars of Spark's Kafka connector: fetched once by the Ivy inside PySpark, checked, and kept.

They are a table by Spark version, so that a new version is a new entry. Each jar is named and summed on its
own: what is in the cache is checked at every start, and a file that is not the pinned one is never loaded.
"""

import hashlib
import importlib.util
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from headrace.config.cache import cache_folder, locked
from headrace.config.java import find_java
from headrace.errors import EngineError

__all__ = ["CONNECTORS", "Jar", "Progress", "connector_jars"]

LONGEST_FETCH = 300.0


@dataclass(frozen=True, slots=True)
class Jar:
    organisation: str
    module: str
    revision: str
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.module}-{self.revision}.jar"

    def __str__(self) -> str:
        return f"{self.organisation}:{self.module}:{self.revision}"


# The connector of Spark 4.3.0 and its token provider are not published; this set was found to work with it.
CONNECTORS: Mapping[str, tuple[Jar, ...]] = {
    "4.3.0": (
        Jar(
            "org.apache.spark",
            "spark-sql-kafka-0-10_2.13",
            "4.2.0",
            "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705",
        ),
        Jar(
            "org.apache.spark",
            "spark-token-provider-kafka-0-10_2.13",
            "4.0.0",
            "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767",
        ),
        Jar(
            "org.apache.kafka",
            "kafka-clients",
            "3.9.2",
            "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8",
        ),
        Jar(
            "org.apache.commons",
            "commons-pool2",
            "2.12.1",
            "5273c8bc8c0dca2211175c0d27efbd7228efae99689aac001a8e1ef8e872e9ef",
        ),
    ),
}

Progress: TypeAlias = Callable[[Jar, int, int], None]
"""Told before each fetch: the jar, how many are there, and how many there will be."""


def connector_jars(spark_version: str, progress: Progress | None = None, cache: Path | None = None) -> list[Path]:
    """The connector's jars for a version of Spark; what is missing or damaged is fetched."""
    jars = CONNECTORS.get(spark_version)
    if jars is None:
        raise EngineError(
            f"no Kafka connector is known for Spark {spark_version}",
            next_step=f"install pyspark=={' or pyspark=='.join(CONNECTORS)}",
        )
    folder = (cache or cache_folder()) / "jars" / f"spark-{spark_version}"
    if not all(_is_whole(folder / jar.file_name, jar) for jar in jars):
        try:
            with locked(folder):
                _fetch_missing(jars, folder, progress)
        except OSError as error:
            raise EngineError(
                f"the jar cache at {folder} cannot be written: {error.strerror or error}",
                next_step="free some space, or set XDG_CACHE_HOME to a folder that you can write",
            ) from error
    return [folder / jar.file_name for jar in jars]


def _fetch_missing(jars: tuple[Jar, ...], folder: Path, progress: Progress | None) -> None:
    missing = [jar for jar in jars if not _is_whole(folder / jar.file_name, jar)]
    java = find_java().command
    for jar in missing:
        if progress is not None:
            progress(jar, len(jars) - len(missing) + missing.index(jar), len(jars))
        with tempfile.TemporaryDirectory(dir=folder) as unfinished:
            fetched = _fetch(java, jar, Path(unfinished), folder)
            if _sum(fetched) != jar.sha256:
                raise EngineError(
                    f"the jar {jar} does not have the pinned checksum: its SHA-256 is {_sum(fetched)}",
                    next_step="check your Maven mirror",
                )
            fetched.replace(folder / jar.file_name)


def _fetch(java: str, jar: Jar, target: Path, folder: Path) -> Path:
    command = [
        java, "-jar", str(_ivy()), "-m2compatible", "-notransitive", "-confs", "default",
        "-dependency", jar.organisation, jar.module, jar.revision,
        "-retrieve", f"{target}/[artifact]-[revision].[ext]", "-cache", str(folder.parent.parent / "ivy"),
    ]  # fmt: skip
    by_hand = f"connect to the network once, or copy {jar.file_name} to {folder} by hand"
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONGEST_FETCH)
    except subprocess.TimeoutExpired:
        raise EngineError(
            f"the jar {jar}, which Spark needs to read topics, could not be downloaded within {LONGEST_FETCH:.0f} s",
            next_step=by_hand,
        ) from None
    found = target / jar.file_name
    if done.returncode or not found.exists():
        raise EngineError(
            f"the jar {jar}, which Spark needs to read topics, could not be downloaded: {_reason(done.stdout)}",
            next_step=by_hand,
        )
    return found


def _reason(said: str) -> str:
    """What Ivy complains of, in a line: it prints a page."""
    for sign in ("Host ", "Server access error", "unresolved dependency", "not found", "ERROR"):
        for line in said.splitlines():
            if sign in line:
                return line.strip().strip(":").strip()
    return "no repository could be reached"


def _ivy() -> Path:
    spec = importlib.util.find_spec("pyspark")
    places = spec.submodule_search_locations if spec is not None else None
    found = sorted(Path(places[0], "jars").glob("ivy-*.jar")) if places else []
    if not found:
        raise EngineError(
            "PySpark is not installed completely: its Ivy jar is missing", next_step="pip install pyspark"
        )
    return found[-1]


def _is_whole(path: Path, jar: Jar) -> bool:
    return path.is_file() and _sum(path) == jar.sha256


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
