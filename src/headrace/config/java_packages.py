"""Unpacks Debian's OpenJDK into the cache folder: without root, and without changing the system.

apt checks the packages against the signed lists of the system's own sources. A Java that is only unpacked does not run:
its settings are links into /etc, and its certificates are written when the package is installed. Both are done here.
"""

import base64
import hashlib
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from headrace.config.cache import cache_folder, locked
from headrace.config.java import can_unpack, find_java, unpacked_home
from headrace.errors import EngineError

__all__ = ["install_java"]

OPENJDK = ("openjdk-17-jre-headless", "openjdk-21-jre-headless")
"""The first that the system's sources have: a release of Debian has one or the other."""
LONGEST_COMMAND = 900.0
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)
DEPENDENCIES_ONLY = [
    f"--no-{kind}" for kind in ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
]

Say = Callable[[str], None]


def install_java(say: Say) -> None:
    """Unpack a Java into the cache folder if none that Spark can use is found."""
    try:
        find_java()
        return
    except EngineError:
        if not can_unpack():
            raise  # it names the command of the platform
    folder = cache_folder() / "java"
    try:
        with locked(folder):
            if not _is_found():  # another process may have unpacked it
                home = unpacked_home()
                shutil.rmtree(home, ignore_errors=True)
                _Unpacking(folder, say).run(home)
    except OSError as error:
        raise EngineError(
            f"Java cannot be unpacked in {folder}: {error.strerror or error}",
            next_step="free some space or set XDG_CACHE_HOME to another folder",
        ) from error


def _is_found() -> bool:
    try:
        find_java()
    except EngineError:
        return False
    return True


class _Unpacking:
    def __init__(self, folder: Path, say: Say) -> None:
        self._folder = folder
        self._packages = folder / "packages"
        self._packages.mkdir(exist_ok=True)
        self._say = say
        # The sandbox user of apt may not write into a home folder.
        self._apt = ["-o", "APT::Sandbox::User=root"]

    def run(self, home: Path) -> None:
        name = self._available()
        # A run that was killed may have left some of it.
        root = self._folder / "unfinished"
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        try:
            self._unpack([name], root)
            java = next(root.glob("usr/lib/jvm/*/bin/java")).resolve().parent.parent
            self._replace_links(java, root)
            self._add_libraries(java, name, root)
            _must_run([str(java / "bin" / "java"), "-version"], f"the unpacked {name} does not run")
            java.rename(home)
        finally:
            shutil.rmtree(root, ignore_errors=True)

    def _available(self) -> str:
        """The package to use. Lists that are missing, or lack it, are downloaded into a folder of their own."""
        for update in (False, True):
            if update:
                self._update()
            for name in OPENJDK:
                if _runs([*self._apt_get("download"), "--print-uris", name]):
                    return name
        raise EngineError(
            f"apt has none of {', '.join(OPENJDK)}",
            next_step="check the network and the sources in /etc/apt, or install Java and set JAVA_HOME",
        )

    def _update(self) -> None:
        self._say("downloading apt's package lists")
        state, cache = self._folder / "apt" / "state", self._folder / "apt" / "cache"
        for place in (state / "lists" / "partial", cache / "archives" / "partial"):
            place.mkdir(parents=True, exist_ok=True)
        self._apt += ["-o", f"Dir::State={state}", "-o", f"Dir::Cache={cache}"]
        # One source that does not answer is no reason to give up: what matters is whether the package is found.
        _runs(self._apt_get("update"))

    def _unpack(self, names: Sequence[str], root: Path) -> None:
        self._say(f"downloading {', '.join(names)}")
        # apt keeps a file whose checksum is right and downloads any other again.
        if not _runs([*self._apt_get("download"), *names], self._packages):
            # The servers no longer have the versions that the system's lists name.
            self._update()
            _must_run([*self._apt_get("download"), *names], f"apt cannot download {' '.join(names)}", self._packages)
        listed = _must_run([*self._apt_get("download"), "--print-uris", *names], "apt cannot list what it downloaded")
        for file in (line.split()[1] for line in listed.splitlines() if line.startswith("'")):
            path = self._packages / file
            _must_run(["dpkg-deb", "-x", str(path), str(root)], f"the package {path} cannot be unpacked")

    def _replace_links(self, java: Path, root: Path) -> None:
        for link in [path for path in java.rglob("*") if path.is_symlink()]:
            target = os.readlink(link)
            if not target.startswith("/"):
                if not link.resolve().is_relative_to(java.resolve()):
                    link.unlink()
                continue
            link.unlink()
            if link.name == "cacerts":
                link.write_bytes(_key_store(self._certificates(root)))
            elif (source := root / target.lstrip("/")).is_file():
                shutil.copyfile(source, link)

    def _certificates(self, root: Path) -> list[bytes]:
        """The authorities that this machine trusts, or those of Debian where it has no list."""
        if CERTIFICATES.exists():
            files: Iterable[Path] = [CERTIFICATES]
        else:
            self._unpack(["ca-certificates"], root)
            files = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
        texts = [file.read_text(errors="replace") for file in files]
        return [base64.b64decode(match) for text in texts for match in CERTIFICATE.findall(text)]

    def _add_libraries(self, java: Path, name: str, root: Path) -> None:
        """Add the shared libraries that are not on the system, from the packages that Java's depends on.

        Java's own libraries look for others beside themselves, and so do those that they load.
        """
        if not (missing := _missing_libraries(java)):
            return
        listed = _must_run(
            ["apt-cache", *self._apt, "depends", "--recurse", *DEPENDENCIES_ONLY, name], "apt-cache failed"
        )
        needed = {line for line in listed.splitlines() if line.startswith("lib")}
        installed = _must_run(["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\n"], "dpkg-query failed")
        absent = needed - {line.split()[1] for line in installed.splitlines() if line.startswith("installed ")}
        self._unpack(sorted(absent), root)
        found = {path.name: path for path in root.rglob("*.so*") if path.is_file() and not path.is_relative_to(java)}
        while missing & found.keys():
            for soname in missing & found.keys():
                shutil.copyfile(found[soname], java / "lib" / soname)
            missing = _missing_libraries(java)
        if missing:
            self._say(f"not found, and needed by parts of Java that Spark does not use: {', '.join(sorted(missing))}")

    def _apt_get(self, command: str) -> list[str]:
        return ["apt-get", "-q", *self._apt, command]


def _missing_libraries(java: Path) -> set[str]:
    libraries = [path for path in java.rglob("*.so*") if path.is_file()]
    said = subprocess.run(
        ["ldd", *map(str, libraries)], capture_output=True, text=True, check=False, timeout=LONGEST_COMMAND
    ).stdout
    # Which of its own libraries are loaded first is Java's affair.
    return set(re.findall(r"^\s*(\S+) => not found", said, re.MULTILINE)) - {path.name for path in libraries}


def _key_store(certificates: Sequence[bytes]) -> bytes:
    """Certificates as a Java key store of type JKS, version 2; the password is the usual one."""

    def text(value: str) -> bytes:
        return struct.pack(">H", len(value)) + value.encode()

    entries = [
        struct.pack(">i", 2)
        + text(f"authority-{number}")
        + bytes(8)
        + text("X.509")
        + struct.pack(">i", len(der))
        + der
        for number, der in enumerate(certificates)
    ]
    store = struct.pack(">Iii", 0xFEEDFEED, 2, len(entries)) + b"".join(entries)
    # Not a secret: the format asks for this sum.
    return (
        store
        + hashlib.sha1("changeit".encode("utf-16-be") + b"Mighty Aphrodite" + store, usedforsecurity=False).digest()
    )


def _runs(command: Sequence[str], folder: Path | None = None) -> bool:
    return _run(command, folder).returncode == 0


def _must_run(command: Sequence[str], failure: str, folder: Path | None = None) -> str:
    done = _run(command, folder)
    if done.returncode:
        lines = (
            [line for line in done.stderr.splitlines() if line.startswith("E:")] or done.stderr.splitlines() or ["?"]
        )
        raise EngineError(
            f"{failure}: {lines[-1].removeprefix('E: ')}", next_step="check the network and the disk, then try again"
        )
    return done.stdout


def _run(command: Sequence[str], folder: Path | None) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    try:
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=LONGEST_COMMAND
        )
    except subprocess.TimeoutExpired:
        raise EngineError(
            f"{command[0]} did not finish within {LONGEST_COMMAND:.0f} s", next_step="check the network, then try again"
        ) from None
