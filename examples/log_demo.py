"""The log at work: a producer, two groups of consumers, and two crashes that lose nothing.

Numbered events go into a topic. Two groups read it, each of them every event. On the way one consumer is
killed with kill -9 and comes back, and so is the broker itself. At the end the numbers are counted: each
group must have read every event that was acknowledged.

Run it with `python examples/log_demo.py`. It ends by itself in about half a minute.
"""

import contextlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

TOPIC = "events"
EVENTS = 9000
EVENTS_PER_SECOND = 600
SECONDS_AT_MOST = 60
SESSION_MS = 3000
COMMAND = [sys.executable, "-m", "headrace"]


def consume(group: str, address: str) -> None:
    """A consumer process: print each event, and commit only what was printed."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 500,
            "log_level": 0,
        }
    )
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    consumer.subscribe([TOPIC])
    while not stopping.is_set():
        messages = [message for message in consumer.consume(500, 0.2) if message.error() is None]
        if messages:
            sys.stdout.write("".join(f"{(message.value() or b'').decode()}\n" for message in messages))
            sys.stdout.flush()
            with contextlib.suppress(Exception):  # a commit lost in a crash means reading again, never losing
                consumer.commit(asynchronous=False)
    consumer.close()


class Broker:
    """`headrace broker` in a process of its own."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.address = "127.0.0.1:0"
        self.start()

    def start(self) -> None:
        settings = [
            "num.partitions=4",
            "group.initial.rebalance.delay.ms=0",
            "group.min.session.timeout.ms=1000",
        ]
        options = [word for setting in settings for word in ("--set", setting)]
        command = [*COMMAND, "broker", "--data", str(self.data), "--listen", self.address, *options]
        log = self.data.parent / "broker.log"
        # A session of its own: Ctrl-C reaches the demo alone, which then stops the others in order.
        with log.open("a") as errors:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
            )
        assert self.process.stdout is not None
        ready = self.process.stdout.readline()
        if " ready at " not in ready:
            raise SystemExit(f"the broker did not start: {ready}{log.read_text()}")
        self.address = ready.split(" ready at ")[1].split()[0].rstrip(",")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(15)


class Group:
    """Consumers that share the topic, and how often each event was read by any of them."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.read: Counter[int] = Counter()
        self.consumers: list[subprocess.Popen[str]] = []
        self._readers: list[threading.Thread] = []

    def add_consumer(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, __file__, "consumer", self.name, self.address],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        reader = threading.Thread(target=self._collect, args=(process,))
        reader.start()
        self.consumers.append(process)
        self._readers.append(reader)
        return process

    def _collect(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.endswith("\n"):  # a killed process may leave half a number
                self.read[int(line)] += 1

    def stop(self) -> None:
        for process in self.consumers:
            process.terminate()
        for process in self.consumers:
            process.wait(15)
        for reader in self._readers:
            reader.join(5)


class Numbers(threading.Thread):
    """Sends numbered events at a steady pace and remembers which were acknowledged."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.acknowledged: set[int] = set()
        self.failed = 0
        self._stopping = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "linger.ms": 5,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        started = time.monotonic()
        for number in range(EVENTS):
            self._producer.produce(TOPIC, str(number), key=str(number % 100), on_delivery=self._on_delivery)
            self._producer.poll(0)
            ahead = started + number / EVENTS_PER_SECOND - time.monotonic()
            if ahead > 0 and self._stopping.wait(ahead):
                return
        self._producer.flush(SECONDS_AT_MOST)

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged.add(int(message.value() or b"-1"))
        else:
            self.failed += 1


class Screen:
    """Bars in a terminal, a line a second elsewhere."""

    def __init__(self, producer: Numbers, groups: list[Group]) -> None:
        self.console = Console(highlight=False)
        self.producer = producer
        self.groups = groups
        self.bars = Progress(
            TextColumn("{task.description:<16}"),
            BarColumn(40),
            TextColumn("{task.completed:>6.0f} of {task.total:.0f}"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._tasks: list[TaskID] = []
        self._last_line = 0.0

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        names = ["acknowledged", *(f"read by {group.name}" for group in self.groups)]
        self._tasks = [self.bars.add_task(name, total=EVENTS) for name in names]
        with self.bars:
            yield

    def counts(self) -> list[int]:
        return [len(self.producer.acknowledged), *(len(group.read) for group in self.groups)]

    def refresh(self) -> None:
        counts = self.counts()
        for task, count in zip(self._tasks, counts, strict=True):
            self.bars.update(task, completed=count)
        if not self.console.is_terminal and time.monotonic() - self._last_line >= 1:
            self._last_line = time.monotonic()
            read = ", ".join(f"{g.name} read {n}" for g, n in zip(self.groups, counts[1:], strict=True))
            self.say(f"  {counts[0]} acknowledged, {read}")

    def say(self, text: str, style: str | None = None) -> None:
        self.console.print(text, style=style, soft_wrap=True)


def main() -> int:
    """Run the story and check how it ended."""
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder:
        return demo(Path(folder))


def demo(folder: Path) -> int:
    """One broker, one producer, two groups, two crashes."""
    started = time.monotonic()
    broker = Broker(folder / "log")
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, 4)])[TOPIC].result(15)
    producer = Numbers(broker.address)
    billing, audit = Group("billing", broker.address), Group("audit", broker.address)
    screen = Screen(producer, [billing, audit])
    screen.say(f"A broker at {broker.address}; its log is in {broker.data}", "bold")
    screen.say(f"A producer of {EVENTS} numbered events; group billing with two consumers, audit with one")
    victim = billing.add_consumer()
    billing.add_consumer()
    audit.add_consumer()

    def kill_consumer() -> None:
        screen.say("kill -9 of a billing consumer: the other takes over its partitions", "yellow")
        victim.kill()

    def resume_consumer() -> None:
        screen.say("billing's second consumer is back: the partitions are shared again", "green")
        billing.add_consumer()

    def crash_broker() -> None:
        screen.say("kill -9 of the broker itself", "yellow")
        broker.kill()
        broker.start()
        screen.say("the broker is back with everything it acknowledged", "green")

    story = [(2500, kill_consumer), (4500, resume_consumer), (6500, crash_broker)]
    producer.start()
    try:
        with screen.shown():
            while time.monotonic() - started < SECONDS_AT_MOST and min(screen.counts()) < EVENTS:
                if story and len(producer.acknowledged) >= story[0][0]:
                    story.pop(0)[1]()
                screen.refresh()
                time.sleep(0.1)
            screen.refresh()
    finally:
        producer.stop()
        for group in screen.groups:
            group.stop()
        exit_code = broker.stop()
    return verdict(screen, producer, exit_code, time.monotonic() - started)


def verdict(screen: Screen, producer: Numbers, exit_code: int, seconds: float) -> int:
    """Count, say what was found, and fail where anything is missing."""
    sent = set(range(EVENTS))
    problems = [f"{len(sent - producer.acknowledged)} events were never acknowledged"] * (producer.acknowledged != sent)
    screen.say("")
    for group in screen.groups:
        lost = len(producer.acknowledged - group.read.keys())
        again = sum(group.read.values()) - len(group.read)
        screen.say(f"{group.name:>8}: {len(group.read)} of {EVENTS} events, {lost} lost, {again} read twice")
        if lost:
            problems.append(f"{group.name} lost {lost} events")
    if exit_code != 0:
        problems.append(f"the broker stopped with exit code {exit_code}")
    if problems:
        screen.say(f"Something is wrong after {seconds:.0f} s: {'; '.join(problems)}", "bold red")
        return 1
    screen.say(f"Every event reached both groups, through two crashes, in {seconds:.0f} s.", "bold green")
    screen.say("(Read twice: what a killed consumer had printed and not yet committed.)")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["consumer"]:
        consume(*sys.argv[2:])
    else:
        try:
            sys.exit(main())
        except KeyboardInterrupt:
            sys.exit(130)
