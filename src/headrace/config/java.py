"""The Java that Spark runs on: JAVA_HOME, then the PATH, then the one that `headrace doctor --install-java` unpacked.

The first of version 17 or newer is used. Java is the one part that pip cannot bring.
"""

import logging
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.config.cache import cache_folder
from headrace.errors import EngineError

__all__ = ["OLDEST_JAVA", "Java", "can_unpack", "find_java", "unpacked_home"]

logger = logging.getLogger(__name__)

OLDEST_JAVA = 17
INSTALL = "headrace doctor --install-java"
VERSION_SECONDS = 60.0
PROGRAMS = ("apt-get", "apt-cache", "dpkg-deb", "dpkg-query", "ldd")
"""What unpacking Debian's packages takes."""
# What an administrator types, by the package manager.
COMMANDS = {
    "apt-get": "apt-get install openjdk-17-jre-headless",
    "dnf": "dnf install java-21-openjdk-headless",
    "yum": "yum install java-17-openjdk-headless",
    "zypper": "zypper install java-17-openjdk-headless",
    "apk": "apk add openjdk17-jre-headless",
    "pacman": "pacman -S jre17-openjdk-headless",
    "brew": 'brew install openjdk@17, then: export JAVA_HOME="$(brew --prefix openjdk@17)"',
}


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that can run Spark."""

    command: str
    version: str
    home: str | None
    """What JAVA_HOME has to be for Spark to start this one; None if it must not be set."""
    refused: tuple[str, ...]
    """The ones that would come first but cannot be used, each with the reason."""

    def use(self) -> None:
        """Make every Spark that this process starts run on it."""
        for reason in self.refused:
            logger.warning("%s: Spark needs %d or newer and runs on %s", reason, OLDEST_JAVA, self.command)
        if self.home is None:
            os.environ.pop("JAVA_HOME", None)
        else:
            os.environ["JAVA_HOME"] = self.home


def unpacked_home(cache: Path | None = None) -> Path:
    return (cache or cache_folder()) / "java" / "home"


def find_java() -> Java:
    """The Java that Spark will run on."""
    refused = []
    for home in _homes():
        command = shutil.which("java", path=str(Path(home, "bin")) if home else None)
        if command is None:
            if home is not None:
                refused.append(f"JAVA_HOME ({home}) has no bin/java")
            continue
        try:
            version = _version(command)
        except EngineError as error:
            refused.append(error.problem)
            continue
        if _major(version) >= OLDEST_JAVA:
            return Java(command, version, home, tuple(refused))
        refused.append(f"{command} is version {version}")
    found = f": {', '.join(refused)}" if refused else " on the PATH"
    raise EngineError(f"Spark needs Java {OLDEST_JAVA} or newer, and there is none{found}", next_step=_advice())


def _homes() -> Iterator[str | None]:
    """Where to look, in this order; None is the PATH."""
    if named := os.environ.get("JAVA_HOME"):
        yield named
    yield None
    if (unpacked := unpacked_home()).exists():
        yield str(unpacked)


def can_unpack() -> bool:
    return all(map(shutil.which, PROGRAMS))


def _advice() -> str:
    if can_unpack():
        return f"type: {INSTALL} (no root needed), or set JAVA_HOME to a newer Java"
    for program, command in COMMANDS.items():
        if shutil.which(program):
            return f"type: {command}"
    return f"install Java {OLDEST_JAVA} or newer, or set JAVA_HOME to the folder of one"


def _version(command: str) -> str:
    try:
        done = subprocess.run(
            [command, "-version"], capture_output=True, text=True, check=False, timeout=VERSION_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineError(f"{command} does not run ({error})") from error
    found = re.search(r'version "([^"]+)"', done.stderr)
    if found is None:
        raise EngineError(f"{command} does not print a version")
    return found[1]


def _major(version: str) -> int:
    found = re.match(r"(?:1\.)?(\d+)", version)
    return int(found[1]) if found else 0
