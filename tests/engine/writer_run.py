"""A process that writes numbered batches through the ledger, as Spark would ask for them: offsets, sink, commit."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

import headrace as hr
from headrace.config.cluster import Cluster
from headrace.config.run import RunConfig
from headrace.engine.run.checkpoints import Checkpoints
from headrace.engine.write.topics import LedgeredWriter
from headrace.topology import Stream


def stream_named(app_name: str, name: str = "numbers") -> Stream:
    app = hr.App(app_name)
    app.topic("source", "n BIGINT")

    def same(source: object) -> object:
        return source

    same.__name__ = name
    return app.stream(same)


def record_rows(topic: str, numbers: Iterable[int]) -> list[pa.RecordBatch]:
    values = [str(number).encode() for number in numbers]
    columns = {
        "topic": [topic] * len(values),
        "key": pa.array(values, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "headers": pa.nulls(len(values), pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        "timestamp": pa.nulls(len(values), pa.timestamp("us", "UTC")),
    }
    return [pa.record_batch(columns)]


def note(file: Path, text: str) -> None:
    """As Spark does it: a file is there whole or not at all."""
    part = file.with_name(f".{file.name}.{os.getpid()}")
    part.write_text(text)
    part.rename(file)


def main(address: str, home: str, app_name: str, topic: str) -> None:
    config = RunConfig(kafka=address, home=Path(home))
    node = stream_named(app_name)
    checkpoint = Checkpoints(config.home, app_name).of(node.name)
    checkpoint.open({"kind": "stream", "sources": {}})
    writer = LedgeredWriter(node, config, Cluster(config), checkpoint)
    writer.open()
    checkpoint.take_note(registered=(writer.ledger_name,), starts_over=False)
    done = checkpoint.committed_batch()
    batch = 0 if done is None else done + 1
    for log in ("offsets", "commits"):
        (checkpoint.spark / log).mkdir(exist_ok=True)
    while True:
        note(checkpoint.spark / "offsets" / str(batch), "v1\n{}\n")
        if not writer.has(batch):
            with writer.transaction(batch) as producer:
                producer.send(record_rows(topic, range(batch * 10, batch * 10 + 10)))
        note(checkpoint.spark / "commits" / str(batch), "v1\n{}")
        print(batch, flush=True)
        batch += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
