"""The broker: a data folder, what it holds, and the socket it is served on."""

import asyncio
import contextlib
import fcntl
import ipaddress
import logging
import os
import secrets
import signal
import sqlite3
import sys
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path

from headrace.broker import groups, topics, transactions
from headrace.broker.clock import Clock
from headrace.broker.groups import Groups, Offsets
from headrace.broker.settings import PROTOCOL, BrokerSettings, InvalidSetting, is_wildcard
from headrace.broker.storage import checkpoint
from headrace.broker.storage.files import Disk
from headrace.broker.storage.manager import LogManager
from headrace.broker.store import Store, StoreError
from headrace.broker.topics import Topics
from headrace.broker.transactions import TransactionCoordinator
from headrace.broker.wire.listener import Listener
from headrace.errors import BrokerError

logger = logging.getLogger(__name__)

NODE_ID = 1
FORMAT_VERSION = 1
DATABASE = "metadata.db"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS broker (name TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
"""


class Broker:
    """Everything that is served from one data folder. `start` recovers and listens, `stop` leaves it clean."""

    def __init__(
        self,
        data: Path,
        listen: str = "127.0.0.1:0",
        settings: Mapping[str, str] | None = None,
        *,
        durability: str = "fsync",
        insecure: bool = False,
        disk: Disk | None = None,
        store_type: type[Store] = Store,
    ) -> None:
        if durability not in ("fsync", "os"):
            raise BrokerError(f"durability {durability!r} is unknown; choose fsync or os")
        host, port = _address(listen)
        _check_exposure(host, insecure)
        given = dict(settings or {})
        if "listeners" in given:
            raise BrokerError("listeners is set by --listen HOST:PORT, not by --set")
        given["listeners"] = PROTOCOL + _joined(host, port)
        try:
            self.settings = BrokerSettings.parse(given)
        except InvalidSetting as error:
            raise BrokerError(str(error)) from error
        self._listen_host, self._listen_port = self.settings.listen_address
        self._advertised = self.settings.advertised_address
        if self._advertised is None and is_wildcard(self._listen_host):
            raise BrokerError(
                f"clients cannot connect to {self._listen_host}, the address that the broker would give them;"
                f" add --set advertised.listeners={PROTOCOL}HOST:{self._listen_port or 'PORT'}"
                " with the host name or IP address by which clients reach this machine"
            )
        self.data = data
        self.clock = Clock()
        self.node_id = NODE_ID
        self._disk = disk or Disk(durable=durability == "fsync")
        self._store_type = store_type
        self._lock: int | None = None

    @property
    def address(self) -> str:
        """Where the broker listens."""
        return _joined(self.host, self.port)

    @property
    def advertised(self) -> tuple[str, int]:
        """The host and port that clients are told to connect to."""
        if self._advertised is None:
            return self.host, self.port
        host, port = self._advertised
        return host, port or self.port

    async def start(self) -> None:
        self._take_folder()
        try:
            await self._start()
        except BaseException:
            self._let_go()
            raise

    async def _start(self) -> None:
        database = self.data / DATABASE
        if not database.exists() and (self.data / "topics").exists():
            raise BrokerError(
                f"{self.data} holds topics but no {DATABASE}: restore that file, or choose an empty folder with --data"
            )
        try:
            self.store = self._store_type(database, durable=self._disk.durable)
            unclean = self.store.load(self._open_store)
        except sqlite3.DatabaseError as error:
            raise BrokerError(f"{database} cannot be read: {error}; restore it from a backup") from error
        self.logs = LogManager(self.data, self.store, self.settings, self.clock, self._disk, unclean=unclean)
        self.logs.load()
        self.topics = Topics(self.store, self.settings, self.logs)
        try:
            self.topics.load()
        except InvalidSetting as error:
            raise BrokerError(f"{self.data}: {error}") from error
        self.logs.finish_loading()
        self.offsets = Offsets(self.store, self.settings, self.clock)
        self.offsets.load()
        self.topics.forgetters.append(self.offsets.forget_topic)
        self.groups = Groups(self.store, self.settings, self.clock, self.offsets, self.topics)
        self.groups.load()
        self.topics.forgetters.append(self.groups.share.forget_topic)
        self.transactions = TransactionCoordinator(
            self.store, self.settings, self.clock, self.topics, self.offsets, self.groups.classic
        )
        self.transactions.load()
        try:
            self._listener = Listener(self, self._listen_host, self._listen_port)
        except OSError as error:
            where = f"{self._listen_host}:{self._listen_port}"
            raise BrokerError(
                f"cannot listen on {where}: {error.strerror}; choose another address with --listen, port 0 for any"
            ) from error
        self.host, self.port = self._listener.host, self._listener.port
        self.store.start()
        self.logs.start()
        await self.transactions.recover()
        self._listener.start()

    async def stop(self) -> None:
        """Answer the requests at hand, sync, save a checkpoint, mark the folder clean. Open transactions stay open.

        The folder's lock is released in any case. Where the store fails, the folder stays unclean, and the next start
        recovers it.
        """
        try:
            self._listener.take_no_more()
            self.groups.close()
            await self._listener.close()
            self.transactions.close()
            await self.transactions.settle()
            await self.topics.settle()
            await self.logs.close()
            offline = any(partition.offline for topic in self.topics.all() for partition in topic.partitions)
            if not offline:
                await self.store.write(lambda connection: _set(connection, "clean", "yes"))
        except StoreError as error:
            logger.error("%s is not marked clean: %s", self.data, error)
        finally:
            try:
                self.store.close()
            finally:
                self._let_go()

    def _open_store(self, connection: sqlite3.Connection) -> bool:
        """Make the tables, learn who this is and whether the last stop was unclean; now it is, until `stop`."""
        for schema in (_SCHEMA, topics.SCHEMA, checkpoint.SCHEMA, groups.SCHEMA, transactions.SCHEMA):
            for statement in schema.split(";"):
                connection.execute(statement)
        known = dict(connection.execute("SELECT name, value FROM broker").fetchall())
        version = int(known.get("format", FORMAT_VERSION))
        if version != FORMAT_VERSION:
            raise BrokerError(f"{self.data} was written by a newer Headrace (format {version}): upgrade to open it")
        self.cluster_id = known.get("cluster_id") or urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
        _set(connection, "format", str(FORMAT_VERSION))
        _set(connection, "cluster_id", self.cluster_id)
        _set(connection, "clean", "no")
        return bool(known) and known.get("clean") != "yes"

    def _take_folder(self) -> None:
        try:
            made = self._disk.make_folders(self.data)
            # Without a database, an earlier start may have been killed before it synced any of the folders it made.
            for folder in made if (self.data / DATABASE).exists() else self.data.parents:
                with contextlib.suppress(PermissionError):
                    self._disk.sync_folder(folder)
            self._lock = os.open(self.data / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise BrokerError(f"{self.data} cannot be used: {error.strerror}; choose a folder with --data") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._let_go()
            raise BrokerError(
                f"another broker is running on {self.data}; stop it, or choose another folder with --data"
            ) from error

    def _let_go(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _set(connection: sqlite3.Connection, name: str, value: str) -> None:
    connection.execute("INSERT OR REPLACE INTO broker VALUES (?, ?)", (name, value))


def _address(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise BrokerError(f"--listen {listen!r} is not an address; use HOST:PORT, such as 127.0.0.1:9092")
    return host.strip("[]") or "127.0.0.1", int(port)


def _check_exposure(host: str, insecure: bool) -> None:
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if not loopback and not insecure:
        raise BrokerError(
            f"{host} can be reached by others, and the broker has neither TLS nor SASL yet;"
            " listen on 127.0.0.1, or add --insecure if the network is trusted"
        )


async def _serve(broker: Broker) -> None:
    await broker.start()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    advertised = _joined(*broker.advertised)
    known_as = "" if advertised == broker.address else f" (advertised as {advertised})"
    print(f"headrace broker ready at {broker.address}{known_as}, data in {broker.data}", flush=True)
    await stop.wait()
    logger.info("stopping")
    await broker.stop()


def serve(data: Path, listen: str, settings: Mapping[str, str], durability: str, insecure: bool) -> int:
    """Run a broker until SIGTERM or Ctrl-C; returns the exit code."""
    # Checks of old segments run beside the loop: it must get its turn sooner than after Python's 5 ms.
    sys.setswitchinterval(0.001)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    asyncio.run(_serve(Broker(data, listen, settings, durability=durability, insecure=insecure)))
    return 0
