"""The services of a home folder: up, down, and used by a run for as long as it takes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

from headrace.errors import Error, ServiceError
from headrace.services.broker import BrokerProcess
from headrace.services.home import Home
from headrace.tables import EmbeddedPostgres

__all__ = ["Addresses", "ServiceStatus", "Services"]

BROKER = "broker"
POSTGRES = "postgres"
KEPT = "kept"
LOOK_EVERY = 0.25
LONGEST_PAUSE = 5.0

Notice = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the services are; None for one that does not run."""

    kafka: str | None
    postgres: str | None


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """One service, now."""

    name: str
    pid: int | None
    """None if it does not run."""
    address: str | None
    data: Path
    log: Path
    started_at: float | None
    """Seconds since 1970."""
    memory: int | None
    """Bytes."""


class Services:
    """The embedded services under a home folder.

    What `up` starts stays until `down`. What a run starts ends with the last run that uses it.
    """

    def __init__(self, home: Path, notice: Notice = lambda _: None) -> None:
        """`notice` is called when the broker gets another port than the one it had, or 9092."""
        self.home = Home(home)
        self._broker = BrokerProcess(self.home.path / BROKER, self.home.logs / "broker.log", notice)
        self._postgres = EmbeddedPostgres(self.home.path / POSTGRES, self.home.logs / "postgres.log")

    def up(self) -> Addresses:
        """Start what does not run, and keep it until `down`. Where one fails, none is left that did not run before."""
        with self.home.changing():
            before = self.addresses()
            try:
                addresses = self._start(kafka=True, postgres=True)
            except BaseException:
                self._stop(kafka=before.kafka is None, postgres=before.postgres is None)
                raise
            self.home.write(self.home.read() | {KEPT: True})
        return addresses

    def down(self) -> list[str]:
        """Stop what runs; returns the names. Refused while a run uses it."""
        if not self.home.path.exists():
            return []
        with self.home.changing():
            if self.home.is_in_use():
                raise ServiceError(
                    f"an app that runs is using the services in {self.home.path}", next_step="stop it first"
                )
            return self._stop()

    def addresses(self) -> Addresses:
        """Where services that run are. Starts nothing, waits for nothing."""
        broker = self._noted_broker()
        return Addresses(
            kafka=broker[1] if broker is not None else None,
            postgres=self._postgres.dsn if self._postgres.process is not None else None,
        )

    def status(self) -> list[ServiceStatus]:
        broker = self._noted_broker()
        found = [(BROKER, broker[0] if broker else None, self._broker.data, self._broker.log)]
        found.append((POSTGRES, self._postgres.process, self._postgres.data, self._postgres.log))
        addresses = self.addresses()
        return [
            ServiceStatus(
                name=name,
                pid=process.pid if process is not None else None,
                address=addresses.kafka if name == BROKER else addresses.postgres,
                data=data,
                log=log,
                started_at=process.create_time() if process is not None else None,
                memory=process.memory_info().rss if process is not None else None,
            )
            for name, process, data, log in found
        ]

    @contextmanager
    def used(self, *, kafka: bool, postgres: bool, notice: Notice = lambda _: None) -> Iterator[Addresses]:
        """The services a run needs: started where they do not run, and again where they die meanwhile.

        `notice` is told, from another thread, when that happens.
        """
        try:
            with self.home.in_use():
                with self.home.changing():
                    addresses = self._start(kafka=kafka, postgres=postgres)
                with _watched(lambda: self._revive(kafka, postgres, addresses, notice), notice):
                    yield addresses
        finally:
            with self.home.changing():
                if not self.home.read().get(KEPT) and not self.home.is_in_use():
                    self._stop()

    def _start(self, *, kafka: bool, postgres: bool) -> Addresses:
        noted = self.home.read()
        broker = self._noted_broker()
        if broker is None and self._postgres.process is None:
            # Whatever `up` kept has ended since, with the machine for instance.
            noted.pop(KEPT, None)
        if kafka and broker is None:
            pid, address = self._broker.start(noted.get(BROKER, {}).get("address"))
            noted[BROKER] = {"pid": pid, "address": address}
        # Noted at once: a start of PostgreSQL that fails must not make us forget the broker.
        self.home.write(noted)
        if postgres:
            noted[POSTGRES] = {"address": self._postgres.start()}
            self.home.write(noted)
        return self.addresses()

    def _stop(self, *, kafka: bool = True, postgres: bool = True) -> list[str]:
        stopped = []
        if postgres and self._postgres.process is not None:
            self._postgres.stop()
            stopped.append(POSTGRES)
        broker = self._noted_broker()
        if kafka and broker is not None:
            self._broker.stop(broker[0])
            stopped.append(BROKER)
        if kafka and postgres:
            noted = self.home.read()
            noted.pop(KEPT, None)
            self.home.write(noted)
        return stopped[::-1]

    def _noted_broker(self) -> tuple[Any, str] | None:
        """The broker's process and its address, if it runs."""
        noted = self.home.read().get(BROKER)
        if not isinstance(noted, dict) or not isinstance(noted.get("pid"), int):
            return None
        process = self._broker.find(noted["pid"])
        return None if process is None else (process, str(noted["address"]))

    def _revive(self, kafka: bool, postgres: bool, before: Addresses, notice: Notice) -> None:
        """Start again what has died. It gets its old address, which clients go on trying."""
        now = self.addresses()
        died = [BROKER] * (kafka and now.kafka is None) + [POSTGRES] * (postgres and now.postgres is None)
        if not died:
            return
        with self.home.changing():
            after = self._start(kafka=kafka, postgres=postgres)
        for name in died:
            notice(f"the embedded {name} died and was started again")
        if after != before:
            notice(f"its address is another now ({after.kafka}, {after.postgres}): stop the app and start it again")


@contextmanager
def _watched(look: Callable[[], None], notice: Notice) -> Iterator[None]:
    """Look again and again, in a thread; where that fails, say so and look less and less often."""
    ended = Event()

    def watch() -> None:
        pause = LOOK_EVERY
        while not ended.wait(pause):
            try:
                look()
                pause = LOOK_EVERY
            except Error as error:
                notice(str(error))
                pause = min(pause * 2, LONGEST_PAUSE)

    thread = Thread(target=watch, name="headrace services", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
