"""Programs nobody here wrote, for tests and benchmarks: Apache Kafka with its tools and clients, Spark's
connector, kcat.

Everything is fetched once by the package clients that are there anyway (the Ivy inside PySpark, apt) and kept
under the user's cache folder. `Headrace` and `ApacheKafka` start the two brokers alike, so that either can
stand for the other.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import importlib.util
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"


class Unavailable(Exception):
    """The machine lacks something that cannot be fetched here; the message says what. A test that needs it fails."""


@dataclass(frozen=True)
class JarSet:
    """Maven modules by `organisation:module:revision`, and the digest of what they must turn out to be."""

    modules: tuple[str, ...]
    transitive: bool
    digest: str


JAR_SETS: Mapping[str, JarSet] = {
    "kafka-4.3": JarSet(
        ("org.apache.kafka:kafka_2.13:4.3.0",),
        transitive=True,
        digest="6ba5e60b8cccc350f2c46cc8daca038d70ef1c9f735d26012993ae00565aef9c",
    ),
    "kafka-tools-4.3": JarSet(
        ("org.apache.kafka:kafka-tools:4.3.0",),
        transitive=False,
        digest="ac839f3067136393fe2a8c329f7c60f2cb92babf873b06cd8366488eb80ff850",
    ),
    "clients-4.3": JarSet(
        ("org.apache.kafka:kafka-clients:4.3.0",),
        transitive=True,
        digest="0fc2b25270af7e00b2c3ff7e4089c3bbc1ff99f284652b6ffddb8d1b2c1de724",
    ),
    "clients-3.9": JarSet(
        ("org.apache.kafka:kafka-clients:3.9.2",),
        transitive=True,
        digest="7c8f5e6ece1666525742c1f090207e7149cf6b53844d06b048d1b2e87e1eb8fc",
    ),
}


def java(program: str = "java") -> str:
    found = shutil.which(program)
    if found is None:
        raise Unavailable(f"{program} is not on the PATH; install a JDK of version 17 or newer")
    return found


def jars(name: str) -> list[Path]:
    """The jars of a set, fetched on first use."""
    wanted = JAR_SETS[name]

    def fetch(folder: Path) -> None:
        _ivy(wanted, folder)
        found = _digest(folder)
        if found != wanted.digest:
            raise RuntimeError(f"the jars of {name} are not the pinned ones: their digest is {found}")

    return sorted(_kept(f"jars/{name}-{wanted.digest[:12]}", fetch).glob("*.jar"))


def classpath(*paths: Path | Sequence[Path]) -> str:
    flat = [path for entry in paths for path in ([entry] if isinstance(entry, Path) else entry)]
    return os.pathsep.join(map(str, flat))


def compiled(folder: Path, libraries: Sequence[Path]) -> Path:
    """The folder of the classes of all Java sources in a folder, compiled against the given jars."""
    sources = sorted(folder.glob("*.java"))
    content = b"".join(source.read_bytes() for source in sources) + classpath(libraries).encode()
    name = f"{folder.parent.name}-{hashlib.sha256(content).hexdigest()[:16]}"

    def compile_into(classes: Path) -> None:
        _run([java("javac"), "-nowarn", "-cp", classpath(libraries), "-d", str(classes), *map(str, sources)])

    return _kept(f"classes/{name}", compile_into)


def kcat() -> list[str]:
    """The command line that starts kcat."""
    return _program("kcat", "-V", "librdkafka1", "libyajl2")


def strace() -> list[str]:
    """The command line that starts strace."""
    return _program("strace", "-V", "libunwind8")


def _program(name: str, probe: str, *libraries: str) -> list[str]:
    """The machine's own program, or the one of Debian's package of that name, unpacked into the cache."""
    if found := shutil.which(name):
        return [found]
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise Unavailable(f"{name} is not on the PATH, nor is {tool}, which would unpack Debian's package")

    def unpack(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as packages:
            got = subprocess.run(
                ["apt-get", "download", "-q", name, *libraries],
                cwd=packages, capture_output=True, text=True, check=False, timeout=120,
            )  # fmt: skip
            if got.returncode:
                raise Unavailable(f"{name} is not on the PATH, and apt did not bring it: {got.stderr.strip()}")
            for package in Path(packages).glob("*.deb"):
                _run(["dpkg-deb", "-x", str(package), str(folder)])

    root = _kept(name, unpack)
    folders = {str(found.parent) for found in root.rglob("*.so.*")}
    command = ["env", f"LD_LIBRARY_PATH={os.pathsep.join(sorted(folders))}", str(root / "usr/bin" / name)]
    started = subprocess.run([*command, probe], capture_output=True, text=True, check=False, timeout=30)
    if started.returncode:
        raise Unavailable(f"{name} was unpacked but does not start: {started.stderr.strip()}")
    return command


def _kept(name: str, make: Callable[[Path], None]) -> Path:
    """A cached folder, made whole or not at all, by one process at a time."""
    folder = CACHE / name
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(folder.name + ".lock")):
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
                part = Path(unfinished) / "part"
                part.mkdir()
                make(part)
                part.rename(folder)
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _ivy(wanted: JarSet, folder: Path) -> None:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise Unavailable("PySpark, whose Ivy fetches jars, is not installed; run `make setup`")
    (ivy,) = Path(spec.submodule_search_locations[0], "jars").glob("ivy-*.jar")
    lines = "".join(
        '<dependency org="{}" name="{}" rev="{}" transitive="{}" conf="default->default"/>'.format(
            *module.split(":"), str(wanted.transitive).lower()
        )
        for module in wanted.modules
    )
    with tempfile.TemporaryDirectory() as scratch:
        module = Path(scratch, "ivy.xml")
        module.write_text(
            '<ivy-module version="2.0"><info organisation="headrace" module="jars"/>'
            f"<dependencies>{lines}</dependencies></ivy-module>"
        )
        pattern = f"{folder}/[artifact]-[revision](-[classifier]).[ext]"
        _run(
            [java(), "-jar", str(ivy), "-m2compatible", "-confs", "default", "-ivy", str(module),
             "-retrieve", pattern, "-types", "jar", "bundle", "-cache", str(CACHE / "ivy")],
            limit=600,
        )  # fmt: skip


def _digest(folder: Path) -> str:
    total = hashlib.sha256()
    for path in sorted(folder.glob("*.jar")):
        total.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def _run(command: Sequence[str], limit: float = 120) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} ... failed:\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout


# ---- the two brokers


class Server:
    """A broker in processes of its own. Restarted, it keeps its folder and its address."""

    kind: str

    def __init__(self, home: Path, properties: Mapping[str, str] | None = None) -> None:
        self.home = home
        self.data = home / "data"
        self.log = home / "server.log"
        self.properties = dict(properties or {})
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        home.mkdir(parents=True, exist_ok=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def spawn(self) -> None:
        """Start the process without waiting for it to serve."""
        raise NotImplementedError

    def start(self, limit: float = 90) -> Server:
        self.spawn()
        try:
            self.wait_until_serving(limit)
        except BaseException:
            self.kill()
            raise
        return self

    def wait_until_serving(self, limit: float = 90) -> None:
        """Until a record sent with acks=all was acknowledged and read back."""
        deadline = time.monotonic() + limit
        while not self._listens():
            self._check_alive()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.kind} did not listen within {limit} s:\n{self.log_tail()}")
            time.sleep(0.02)
        round_trip(self.address, max(1.0, deadline - time.monotonic()))

    def processes(self) -> list[psutil.Process]:
        if self.process is None:
            return []
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def segments(self, topic: str, partition: int) -> list[Path]:
        """The files that hold a partition's records, oldest first."""
        raise NotImplementedError

    def stop(self, limit: float = 60) -> int:
        """Ask it to stop (SIGTERM) and return its exit code."""
        if self.process is None:
            return 0
        self.process.terminate()
        try:
            return self.process.wait(limit)
        finally:
            self.kill()

    def kill(self) -> None:
        """kill -9, itself and its children."""
        if self.process is None:
            return
        try:
            family = self.processes()
        except psutil.NoSuchProcess:
            family = []
        for member in family:
            try:
                member.kill()
            except psutil.NoSuchProcess:
                pass
        self.process.wait(30)
        self.process = None

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else ""

    def _launch(self, command: Sequence[str], stdout: Path) -> None:
        with stdout.open("wb") as out, self.log.open("ab") as errors:
            self.process = subprocess.Popen(command, stdout=out, stderr=errors, start_new_session=True)

    def _listens(self) -> bool:
        # A port that answers may be another's, or a socket connected to itself: ask who holds it.
        return self.port != 0 and any(
            held.status == psutil.CONN_LISTEN and held.laddr.port == self.port
            for member in self.processes()
            for held in member.net_connections(kind="tcp")
        )

    def _check_alive(self) -> None:
        if self.process is None or self.process.poll() is not None:
            code = None if self.process is None else self.process.returncode
            raise RuntimeError(f"{self.kind} ended with {code} while starting:\n{self.log_tail()}")

    def __enter__(self) -> Server:
        return self if self.process else self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()


class Headrace(Server):
    """`headrace broker`, as a user starts it."""

    kind = "headrace"
    _READY = re.compile(r"ready at 127\.0\.0\.1:(\d+)")

    def __init__(self, home: Path, properties: Mapping[str, str] | None = None, durability: str = "fsync") -> None:
        super().__init__(home, properties)
        self.durability = durability

    def spawn(self) -> None:
        settings = [word for name, value in self.properties.items() for word in ("--set", f"{name}={value}")]
        self.out = self.home / "stdout.log"
        self._launch(
            [str(Path(sys.executable).with_name("headrace")), "broker", "--data", str(self.data),
             "--listen", self.address, "--durability", self.durability, *settings],
            self.out,
        )  # fmt: skip

    def segments(self, topic: str, partition: int) -> list[Path]:
        return sorted(self.data.glob(f"topics/{topic}/*/{partition}/*.log"))

    def _listens(self) -> bool:
        ready = self._READY.search(self.out.read_text())
        if ready:
            self.port = int(ready.group(1))
        return ready is not None


class ApacheKafka(Server):
    """One combined node of Apache Kafka 4.3. `heap` and the collector are those of its own start script."""

    kind = "kafka"

    def __init__(self, home: Path, properties: Mapping[str, str] | None = None, heap: str = "1G") -> None:
        super().__init__(home, properties)
        self.heap = heap
        self.config = home / "server.properties"

    def spawn(self) -> None:
        libraries = classpath(jars("kafka-4.3"))
        if not self.config.exists():
            self._configure(libraries)
        self._launch(
            [java(), f"-Xmx{self.heap}", f"-Xms{self.heap}", "-server", "-XX:+UseG1GC",
             "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
             "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true",
             "-cp", libraries, "kafka.Kafka", str(self.config)],
            self.home / "stdout.log",
        )  # fmt: skip

    def segments(self, topic: str, partition: int) -> list[Path]:
        return sorted(self.data.glob(f"{topic}-{partition}/*.log"))

    def _configure(self, libraries: str) -> None:
        self.port, controller = free_port(), free_port()
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.data),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            **self.properties,
        }
        self.config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        # A leading dash would be read as an option.
        cluster = "k" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
        _run([java(), "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp", libraries, "kafka.tools.StorageTool",
              "format", "-t", cluster, "-c", str(self.config)])  # fmt: skip


def free_port() -> int:
    """A port outside the ephemeral range, where a connecting socket cannot pick it up by itself."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(10_000, low)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def round_trip(address: str, limit: float, topic: str = "round-trip") -> None:
    """Send one record with acks=all and read it back, or raise TimeoutError."""
    deadline = time.monotonic() + limit
    token = uuid.uuid4().bytes
    placed: list[TopicPartition] = []
    failures: list[str] = []

    def delivered(error: object, message: object) -> None:
        if error is None:
            placed.append(TopicPartition(topic, message.partition(), message.offset()))  # type: ignore[attr-defined]
        else:
            failures.append(str(error))

    quiet = {"bootstrap.servers": address, "log_level": 0, "reconnect.backoff.max.ms": 200}
    producer = Producer({**quiet, "acks": "all", "message.timeout.ms": int(limit * 1000)})
    producer.produce(topic, token, on_delivery=delivered)
    producer.flush(limit)
    if not placed:
        raise TimeoutError(f"no acknowledgement from {address} within {limit:.0f} s {failures}")
    consumer = Consumer({**quiet, "group.id": "round-trip", "enable.auto.commit": False})
    try:
        consumer.assign(placed)
        while time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None and not message.error() and message.value() == token:
                return
        raise TimeoutError(f"the record sent to {address} was not read back within {limit:.0f} s")
    except KafkaException as failed:
        raise TimeoutError(f"reading back from {address} failed: {failed}") from failed
    finally:
        consumer.close()


def broker_for_tests(home: Path, properties: Mapping[str, str] | None = None, durability: str = "fsync") -> Server:
    """The broker that the clients' tests run against: Headrace, or Apache Kafka to prove the tests right."""
    if os.environ.get("HEADRACE_TEST_BROKER") == "kafka":
        return ApacheKafka(home, properties, heap="512M")
    return Headrace(home, properties, durability)
