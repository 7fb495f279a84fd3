"""Load on librdkafka, commanded as java/Load.java is: `verb name=value ...` in, `ok name=value ...` out."""

from __future__ import annotations

import os
import random
import struct
import sys
import threading
import time
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

PAYLOADS = 1024
STAMP = struct.Struct("!iq")

Arguments = Mapping[str, str]
Outcome = dict[str, float]

held: list[Consumer] = []  # idle pollers, alive until `release`


def produce(args: Arguments) -> Outcome:
    """Send for `seconds`, or `records` records, and wait for every acknowledgement."""
    topic, records = args["topic"], int(args.get("records", 0))
    values = payloads(int(args["size"]))
    keys = payloads(8) if "keyed" in args else [None] * PAYLOADS
    batch = [
        {"value": value} if key is None else {"value": value, "key": key}
        for key, value in zip(keys, values, strict=True)
    ]
    failed = 0

    def count_failure(error: KafkaError | None, _: Message) -> None:
        nonlocal failed
        failed += error is not None

    producer = Producer({"delivery.report.only.error": True, **settings(args, "p.")})
    producer.list_topics(topic, 30)
    started = time.perf_counter()
    end = started + float(args.get("seconds", 0))
    sent = 0
    while sent < records if records else time.perf_counter() < end:
        queued = producer.produce_batch(topic, batch, on_delivery=count_failure)
        sent += queued
        if queued < PAYLOADS:
            producer.poll(0.001)
    while producer.flush(1):
        if time.perf_counter() > end + 120:
            raise TimeoutError("the broker stopped acknowledging")
    took = time.perf_counter() - started
    return {"records": sent - failed, "failed": failed, "seconds": took}


def consume(args: Arguments) -> Outcome:
    """Read `records` records of a topic from its beginning. The time runs from the first records to the last."""
    wanted, topic = int(args["records"]), args["topic"]
    consumer = reader(args)
    assign(consumer, topic, 0)
    started = first = time.perf_counter()
    count = ignored = size = 0
    while count < wanted and time.perf_counter() < started + 120:
        messages = consumer.consume(min(5_000, wanted - count), 1.0)  # asked for more than there is, it waits
        if not count and messages:
            first, ignored = time.perf_counter(), len(messages)
        count += len(messages)
        size += sum(map(len, messages))
    end = time.perf_counter()
    consumer.close()
    return {
        "records": count - ignored,
        "all": count,
        "bytes": size,
        "seconds": end - first,
        "total": end - started,
    }


def latency(args: Arguments) -> Outcome:
    """Send at a fixed rate, whatever the broker does, and time acknowledgement and receipt of each record."""
    topic, rate = args["topic"], int(args["rate"])
    skipped = int(rate * float(args["warmup"]))
    count = skipped + int(rate * float(args["seconds"]))
    values = payloads(int(args["size"]))
    acknowledged, received = [0] * count, [0] * count
    failed = arrived = 0
    ready, stop = threading.Event(), threading.Event()

    def receive() -> None:
        nonlocal arrived
        consumer = reader(args)
        partition = TopicPartition(topic, 0)
        _, partition.offset = consumer.get_watermark_offsets(partition, 30)
        consumer.assign([partition])
        consumer.poll(0.1)
        ready.set()
        while arrived < count and not stop.is_set():
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                now = time.monotonic_ns()
                index, sent = STAMP.unpack_from(message.value() or b"")
                received[index] = now - sent
                arrived += 1
        consumer.close()

    thread = threading.Thread(target=receive)
    thread.start()
    assert ready.wait(30)

    def acknowledge(error: KafkaError | None, message: Message) -> None:
        nonlocal failed
        now = time.monotonic_ns()
        index, sent = STAMP.unpack_from(message.value() or b"")
        acknowledged[index] = now - sent
        failed += error is not None

    producer = Producer(settings(args, "p."))
    producer.list_topics(topic, 30)
    start = time.monotonic_ns()
    for index in range(count):
        due = start + index * 1_000_000_000 // rate
        while (left := due - time.monotonic_ns()) > 0:
            producer.poll(left / 1e9)
        value = values[index % PAYLOADS]
        now = time.monotonic_ns()
        producer.produce(topic, STAMP.pack(index, now) + value[STAMP.size :], on_delivery=acknowledge)
        producer.poll(0)
    producer.flush(60)
    took = (time.monotonic_ns() - start) / 1e9
    patience = time.monotonic() + 10
    while arrived < count and time.monotonic() < patience:
        time.sleep(0.005)
    stop.set()
    thread.join()
    return {
        "records": count,
        "arrived": arrived,
        "failed": failed,
        "seconds": took,
        **quantiles("ack", acknowledged[skipped:]),
        **quantiles("receipt", received[skipped:]),
    }


def pollers(args: Arguments) -> Outcome:
    """Hold `count` consumers that wait for records which never come."""
    partitions = int(args["partitions"])
    for number in range(int(args["count"])):
        consumer = reader(args)
        consumer.assign([TopicPartition(args["topic"], number % partitions, 0)])
        held.append(consumer)
    for consumer in held:
        consumer.poll(0.05)
    return {"held": len(held)}


def release(_: Arguments) -> Outcome:
    count = len(held)
    while held:
        held.pop().close()
    return {"released": count}


def quantiles(name: str, nanos: list[int]) -> Outcome:
    ordered = sorted(nanos)
    shares = {"50": 0.5, "99": 0.99, "99.9": 0.999, "100": 1.0}
    return {
        f"{name}_p{label}": ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1e6
        for label, share in shares.items()
    }


def reader(args: Arguments) -> Consumer:
    return Consumer({"group.id": "load", "enable.auto.commit": False, **settings(args, "c.")})


def assign(consumer: Consumer, topic: str, offset: int) -> None:
    known = consumer.list_topics(topic, 30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, offset) for partition in known])


def payloads(size: int) -> list[bytes]:
    source = random.Random(size)
    return [source.randbytes(size) for _ in range(PAYLOADS)]


def settings(args: Arguments, prefix: str) -> dict[str, str]:
    own = {name.removeprefix(prefix): value for name, value in args.items() if name.startswith(prefix)}
    return {"bootstrap.servers": args["bootstrap"], **own}


VERBS = {
    "produce": produce,
    "consume": consume,
    "latency": latency,
    "pollers": pollers,
    "release": release,
}


def main() -> None:
    for line in sys.stdin:
        verb, *pairs = line.split()
        try:
            outcome = VERBS[verb](dict(pair.split("=", 1) for pair in pairs))
            print("ok", *(f"{name}={value}" for name, value in outcome.items()), flush=True)
        except Exception as failure:
            print("error", repr(failure).replace("\n", " "), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
