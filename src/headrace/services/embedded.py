"""The services of a home folder: started by `up`, stopped by `down`, or used by a run while it lasts."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from headrace.errors import Error, ServiceError
from headrace.services.broker import BrokerProcess
from headrace.services.delays import DelaysProcess
from headrace.services.home import Home
from headrace.tables import EmbeddedPostgres
from headrace.threads import Threads

__all__ = ["Addresses", "ServiceStatus", "Services"]

BROKER = "broker"
POSTGRES = "postgres"
DELAYS = "delays"
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

    What `up` starts runs until `down`. What a run starts is stopped with the last run that uses it.
    """

    def __init__(self, home: Path, notice: Notice = lambda _: None) -> None:
        """`notice` is called when the broker gets another port than the one it had, or 9092."""
        self.home = Home(home)
        self._broker = BrokerProcess(self.home.path / BROKER, self.home.logs / "broker.log", notice)
        self._postgres = EmbeddedPostgres(self.home.path / POSTGRES, self.home.logs / "postgres.log")
        self._delays = DelaysProcess(self.home.path, self.home.logs / "delays.log")

    def up(self) -> Addresses:
        """Start what does not run, and keep it until `down`. If one fails, what was started here is stopped again."""
        with self.home.changing():
            before = self.addresses()
            try:
                addresses = self._start(kafka=True, postgres=True)
                self._start_delays(addresses)
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
                    f"a running app uses the services in {self.home.path}", next_step="stop the app first"
                )
            return self._stop()

    def addresses(self) -> Addresses:
        """The addresses of the services that run. Starts nothing and does not wait."""
        broker = self._noted_broker()
        return Addresses(
            kafka=broker[1] if broker is not None else None,
            postgres=self._postgres.dsn if self._postgres.process is not None else None,
        )

    def status(self) -> list[ServiceStatus]:
        broker = self._noted_broker()
        found = [(BROKER, broker[0] if broker else None, self._broker.data, self._broker.log)]
        found.append((POSTGRES, self._postgres.process, self._postgres.data, self._postgres.log))
        found.append((DELAYS, self._noted_delays(), self._delays.data, self._delays.log))
        addresses = self.addresses()
        places = {BROKER: addresses.kafka, POSTGRES: addresses.postgres}
        return [
            ServiceStatus(
                name=name,
                pid=process.pid if process is not None else None,
                address=places.get(name),
                data=data,
                log=log,
                started_at=process.create_time() if process is not None else None,
                memory=process.memory_info().rss if process is not None else None,
            )
            for name, process, data, log in found
        ]

    @contextmanager
    def used(
        self, *, kafka: bool, postgres: bool, notice: Notice = lambda _: None, threads: Threads | None = None
    ) -> Iterator[Addresses]:
        """The services a run needs: those that do not run are started, and those that die meanwhile are restarted.

        `notice` is then called, from a thread. If that thread dies, `threads` has its failure; without `threads`, it
        is raised at the end.
        """
        own = Threads(self.home.logs / "services.log")
        try:
            with self.home.in_use():
                with self.home.changing():
                    addresses = self._start(kafka=kafka, postgres=postgres)
                with _watched(lambda: self._revive(kafka, postgres, addresses, notice), notice, threads or own):
                    yield addresses
                own.check()
        finally:
            with self.home.changing():
                if not self.home.read().get(KEPT) and not self.home.is_in_use():
                    self._stop()

    def _start(self, *, kafka: bool, postgres: bool) -> Addresses:
        noted = self.home.read()
        broker = self._noted_broker()
        if broker is None and self._postgres.process is None:
            # What `up` started has ended since, for instance because the machine was restarted.
            noted.pop(KEPT, None)
        if kafka and broker is None:
            pid, address = self._broker.start(noted.get(BROKER, {}).get("address"))
            noted[BROKER] = {"pid": pid, "address": address}
        # Noted at once: the broker must be known even if PostgreSQL then fails to start.
        self.home.write(noted)
        if postgres:
            noted[POSTGRES] = {"address": self._postgres.start()}
            self.home.write(noted)
        return self.addresses()

    def _start_delays(self, addresses: Addresses) -> None:
        assert addresses.kafka is not None
        if self._noted_delays() is None:
            self.home.write(self.home.read() | {DELAYS: {"pid": self._delays.start(addresses.kafka)}})

    def _stop(self, *, kafka: bool = True, postgres: bool = True) -> list[str]:
        stopped = []
        if kafka and (delays := self._noted_delays()) is not None:
            self._delays.stop(delays)
            stopped.append(DELAYS)
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

    def _noted_delays(self) -> Any:
        """The process of the delay service, if it runs."""
        noted = self.home.read().get(DELAYS)
        if not isinstance(noted, dict) or not isinstance(noted.get("pid"), int):
            return None
        return self._delays.find(noted["pid"])

    def _noted_broker(self) -> tuple[Any, str] | None:
        """The broker's process and its address, if it runs."""
        noted = self.home.read().get(BROKER)
        if not isinstance(noted, dict) or not isinstance(noted.get("pid"), int):
            return None
        process = self._broker.find(noted["pid"])
        return None if process is None else (process, str(noted["address"]))

    def _revive(self, kafka: bool, postgres: bool, before: Addresses, notice: Notice) -> None:
        """Restart what has died. It gets its old address, to which clients reconnect."""
        now = self.addresses()
        died = [BROKER] * (kafka and now.kafka is None) + [POSTGRES] * (postgres and now.postgres is None)
        if not died:
            return
        with self.home.changing():
            after = self._start(kafka=kafka, postgres=postgres)
        for name in died:
            notice(f"the embedded {name} died and was restarted")
        if after != before:
            notice(f"its address has changed ({after.kafka}, {after.postgres}): restart the app")


@contextmanager
def _watched(look: Callable[[], None], notice: Notice, threads: Threads) -> Iterator[None]:
    """Look again and again, in a thread. After an error, tell `notice` and look less often."""
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

    thread = threads.start("services", watch)
    try:
        yield
    finally:
        ended.set()
        thread.join()
