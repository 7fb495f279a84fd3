"""An app with a topic of its own in the shared broker."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import headrace as hr
from headrace.topology import Topic

SCHEMA = "id STRING NOT NULL, card STRING, amount DECIMAL(12,2), at TIMESTAMP"

MakeTopic = Callable[..., Topic]


@pytest.fixture
def app(broker_address: str, monkeypatch: pytest.MonkeyPatch) -> hr.App:
    monkeypatch.setenv("HEADRACE_KAFKA", broker_address)
    return hr.App("shop")


@pytest.fixture
def make_topic(app: hr.App, broker_address: str, topic: str) -> MakeTopic:
    """Makes the topic, and the node that stands for it."""

    def make(
        partitions: int = 3,
        schema: str | None = SCHEMA,
        key: str | None = "card",
        settings: dict[str, str] | None = None,
        **options: object,
    ) -> Topic:
        admin = AdminClient({"bootstrap.servers": broker_address, "log_level": 0})
        admin.create_topics([NewTopic(topic, partitions, config=settings or {})])[topic].result(15)
        return app.topic("payments", schema, key=key, topic=topic, **options)  # type: ignore[arg-type]

    return make


@pytest.fixture
def payments(make_topic: MakeTopic) -> Topic:
    return make_topic(event_time="at", lateness="1 minute")
