"""A producer sends rows that fit, says where they are once they are safe, and refuses the rest by name."""

from __future__ import annotations

import datetime
import threading
import time
from decimal import Decimal

import pytest
from confluent_kafka import Producer as JavaLikeProducer

import headrace as hr
from headrace.clients import Producer
from headrace.topology import Topic
from tests.clients.conftest import MakeTopic

NOON = datetime.datetime(2026, 1, 31, 12, 0, 0, 250, tzinfo=datetime.UTC)


def payment(number: int, card: str = "c1") -> dict[str, object]:
    return {"id": f"p{number}", "card": card, "amount": Decimal("9.90"), "at": NOON}


def test_a_receipt_names_the_place_of_the_row_that_was_sent(app: hr.App, payments: Topic) -> None:
    with app.producer() as producer:
        receipts = [producer.send(payments, payment(number)).result(30) for number in range(3)]
    assert [receipt.offset for receipt in receipts] == [0, 1, 2]
    assert {receipt.topic for receipt in receipts} == {payments.topic_name}
    read = list(app.read(payments))
    assert [record.receipt for record in read] == receipts
    assert [record.row for record in read] == [payment(number) for number in range(3)]
    assert read[0].key == b"c1"


def test_many_rows_are_sent_at_once_with_receipts_in_their_order(app: hr.App, payments: Topic) -> None:
    rows = [payment(number, card=f"c{number % 7}") for number in range(500)]
    with app.producer() as producer:
        receipts = producer.send_all("payments", iter(rows))
    by_place = {record.receipt: record.row for record in app.read("payments")}
    assert [by_place[receipt] for receipt in receipts] == rows


def test_rows_of_a_key_are_where_java_would_put_them(app: hr.App, payments: Topic, broker_address: str) -> None:
    placed = {}
    java = JavaLikeProducer({"bootstrap.servers": broker_address, "partitioner": "murmur2"})
    for number in range(50):
        java.produce(
            payments.topic_name,
            b"{}",
            f"c{number}",
            on_delivery=lambda _, message: placed.update({message.key(): message.partition()}),
        )
    java.flush(30)
    with app.producer() as producer:
        receipts = producer.send_all(payments, [payment(number, card=f"c{number}") for number in range(50)])
    assert [receipt.partition for receipt in receipts] == [placed[f"c{number}".encode()] for number in range(50)]


def test_headers_and_the_records_own_time_go_along(app: hr.App, payments: Topic) -> None:
    moment = datetime.datetime(2026, 1, 31, 12, 0, 1, 5000, tzinfo=datetime.UTC)
    with app.producer() as producer:
        producer.send(payments, payment(1), headers={"trace": b"7", "empty": None}, timestamp=moment, partition=2)
        producer.flush()
        (record,) = app.read(payments)
        assert (record.headers, record.timestamp) == ((("trace", b"7"), ("empty", None)), moment)
        assert record.partition == 2
        with pytest.raises(hr.InputError, match="has no time zone"):
            producer.send(payments, payment(1), timestamp=datetime.datetime(2026, 1, 31))


def test_a_row_that_does_not_fit_is_refused_and_those_before_it_were_sent(app: hr.App, payments: Topic) -> None:
    rows = [payment(1), payment(2), payment(3) | {"amount": Decimal("1.005")}]
    with app.producer() as producer:
        with pytest.raises(hr.InputError) as refused:
            producer.send_all(payments, rows)
        assert str(refused.value) == (
            "row 3: topic 'payments': column 'amount' is 1.005, which has more digits than DECIMAL(12,2); "
            "the 2 before it were sent"
        )
        producer.flush()
    assert len(list(app.read(payments))) == 2


def test_the_key_of_a_topic_without_key_columns_is_given_with_the_row(app: hr.App, make_topic: MakeTopic) -> None:
    node = make_topic(schema=None, key=None, format="string")
    with app.producer() as producer:
        producer.send(node, "hello", key="k")
        producer.send_raw(node, b"\xff", key=b"k")
        producer.flush()
    assert read_raw(app, node) == [(b"k", b"hello"), (b"k", b"\xff")]


def read_raw(app: hr.App, node: Topic) -> list[tuple[bytes | None, bytes | None]]:
    seen: list[tuple[bytes | None, bytes | None]] = []
    with app.consumer(
        node, group=f"raw-{node.topic_name}", on_rejected=lambda r, _: seen.append((r.key, r.value))
    ) as c:
        while len(seen) < 2:
            record = c.poll(1)
            if record is not None:
                seen.append((record.key, record.value))
    return seen


def test_a_key_that_is_made_of_columns_cannot_be_given_as_well(app: hr.App, payments: Topic) -> None:
    with app.producer() as producer, pytest.raises(hr.InputError, match="the key is taken from the columns card"):
        producer.send(payments, payment(1), key="other")


def test_only_topics_are_sent_to_and_unknown_names_are_answered_with_the_nearest(app: hr.App, payments: Topic) -> None:
    @app.stream
    def paid(payments: object) -> object:
        return payments

    with app.producer() as producer:
        with pytest.raises(hr.InputError, match="did you mean 'payments'"):
            producer.send("payment", payment(1))
        with pytest.raises(hr.InputError, match="paid is written by the app itself"):
            producer.send(paid, payment(1))


def test_what_no_broker_takes_is_told_by_the_future_and_by_flush(app: hr.App, make_topic: MakeTopic) -> None:
    payments = make_topic(settings={"max.message.bytes": "200"})
    large = payment(1) | {"id": "x" * 300}
    with app.producer() as producer:
        future = producer.send(payments, large)
        with pytest.raises(hr.NotDelivered, match="was not acknowledged"):
            future.result(30)
        with pytest.raises(hr.NotDelivered):
            producer.flush()
        producer.flush()
        with pytest.raises(hr.NotDelivered):
            producer.send_all(payments, [large, large])
        producer.flush()
    with pytest.raises(hr.NotDelivered, match="2 records were not acknowledged"), app.producer() as producer:
        _ = [producer.send(payments, large) for _ in range(2)]


def test_a_partition_that_is_not_there_is_said_at_once(app: hr.App, payments: Topic) -> None:
    with app.producer() as producer:
        producer.send(payments, payment(1))
        producer.flush()
        with pytest.raises(hr.TopicNotFound):
            producer.send(payments, payment(1), partition=99)


def test_several_threads_send_through_one_producer(app: hr.App, payments: Topic) -> None:
    with app.producer() as producer:
        workers = [
            threading.Thread(target=producer.send_all, args=(payments, [payment(number) for number in range(100)]))
            for _ in range(4)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert len(list(app.read(payments))) == 400


def test_nobody_at_the_address_is_said_within_seconds(app: hr.App) -> None:
    began = time.monotonic()
    with pytest.raises(hr.Unreachable, match=r"no Kafka answers at 127\.0\.0\.1:1 \(connection refused\)"):
        app.producer(kafka="127.0.0.1:1")
    assert time.monotonic() - began < 5


def test_a_closed_producer_takes_nothing_more(app: hr.App, payments: Topic) -> None:
    with app.producer() as producer:
        pass
    assert isinstance(producer, Producer)
    with pytest.raises(hr.InputError, match="the producer is closed"):
        producer.send(payments, payment(1))
