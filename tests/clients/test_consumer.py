"""A consumer gives typed rows, commits what was processed and nothing else, and handles an id once."""

from __future__ import annotations

import datetime
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

import headrace as hr
from headrace.clients import records as client_records
from headrace.topology import Topic
from tests.clients.conftest import MakeTopic

NOON = datetime.datetime(2026, 1, 31, 12, 0, 0, 250, tzinfo=datetime.UTC)


@dataclass
class Payment:
    id: str
    card: str
    amount: Decimal | None = None
    at: datetime.datetime | None = None


def payment(number: int, card: str = "c1") -> dict[str, Any]:
    return {"id": f"p{number}", "card": card, "amount": Decimal("9.90"), "at": NOON}


@pytest.fixture
def sent(app: hr.App, payments: Topic) -> list[dict[str, Any]]:
    rows = [payment(number, card=f"c{number % 5}") for number in range(20)]
    with app.producer() as producer:
        producer.send_all(payments, rows)
    return rows


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


def ids(records: list[hr.Record]) -> set[str]:
    return {record.row["id"] for record in records}


def take(consumer: hr.Consumer, count: int) -> list[hr.Record]:
    """That many records; the last of them is in hand, not processed."""
    records = consumer.__iter__()
    return [next(records) for _ in range(count)]


def test_rows_come_with_all_that_the_record_has(app: hr.App, payments: Topic, sent: Any, group: str) -> None:
    with app.consumer("payments", group=group) as consumer:
        records = take(consumer, 20)
    by_id = {record.row["id"]: record for record in records}
    assert [by_id[row["id"]].row for row in sent] == sent
    one = by_id["p7"]
    assert (one.key, one.topic, one.headers) == (b"c2", payments.topic_name, ())
    assert one.timestamp is not None
    assert abs(one.timestamp - datetime.datetime.now(datetime.UTC)) < datetime.timedelta(minutes=1)


def test_a_model_as_the_schema_gives_its_instances(app: hr.App, sent: Any, group: str) -> None:
    with app.consumer("payments", group=group, schema=Payment) as consumer:
        assert {record.row.id for record in take(consumer, 20)} == {row["id"] for row in sent}
        assert isinstance(take_one(app, group + "-b").row, Payment)


def take_one(app: hr.App, group: str) -> hr.Record:
    with app.consumer("payments", group=group, schema=Payment) as consumer:
        return take(consumer, 1)[0]


def test_what_was_processed_does_not_come_again(app: hr.App, sent: Any, group: str) -> None:
    with app.consumer("payments", group=group) as consumer:
        first = take(consumer, 8)
    with app.consumer("payments", group=group) as consumer:
        rest = take(consumer, 12)
    assert ids(first) | ids(rest) == {row["id"] for row in sent}
    assert not ids(first) & ids(rest)


def test_a_record_in_hand_when_an_error_strikes_comes_again(app: hr.App, sent: Any, group: str) -> None:
    first: list[hr.Record] = []

    def crash(consumer: hr.Consumer) -> None:
        first.extend(take(consumer, 8))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), app.consumer("payments", group=group) as consumer:
        crash(consumer)
    with app.consumer("payments", group=group) as consumer:
        rest = take(consumer, 13)
    assert ids(first) & ids(rest) == {first[-1].row["id"]}


def test_commit_counts_the_record_in_hand(app: hr.App, sent: Any, group: str) -> None:
    first: list[hr.Record] = []

    def commit_and_crash(consumer: hr.Consumer) -> None:
        consumer.commit()  # nothing yet, which is no error
        first.extend(take(consumer, 8))
        consumer.commit()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), app.consumer("payments", group=group) as consumer:
        commit_and_crash(consumer)
    with app.consumer("payments", group=group) as consumer:
        assert not ids(first) & ids(take(consumer, 12))


def test_two_members_share_a_topic_and_leaving_hands_over(app: hr.App, sent: Any, group: str) -> None:
    seen: list[str] = []
    with app.consumer("payments", group=group) as first, app.consumer("payments", group=group) as second:
        while len(set(seen)) < 20:
            for member in (first, second):
                record = member.poll(0.1)
                if record is not None:
                    seen.append(record.row["id"])
    assert set(seen) == {row["id"] for row in sent}


def test_a_record_that_cannot_be_read_stops_or_is_handed_over(app: hr.App, payments: Topic, group: str) -> None:
    with app.producer() as producer:
        producer.send(payments, payment(1))
        producer.send_raw(payments, b'{"id": 1} and more', key="c1")
        producer.send(payments, payment(2))
    words = r"\[\d\]@1: the value is not one JSON object; pass on_rejected="
    with pytest.raises(hr.InputError, match=words), app.consumer(payments, group=group) as consumer:
        take(consumer, 2)
    rejected: list[tuple[bytes | None, str]] = []

    def on_rejected(record: hr.Record, reason: str) -> None:
        rejected.append((record.value, reason))

    with app.consumer(payments, group=group, on_rejected=on_rejected) as consumer:
        assert ids(take(consumer, 1)) == {"p2"}
    assert [value for value, _ in rejected] == [b'{"id": 1} and more']


def test_a_bad_record_does_not_make_a_topic_unreadable(app: hr.App, make_topic: MakeTopic) -> None:
    payments = make_topic(partitions=1)
    with app.producer() as producer:
        producer.send(payments, payment(1))
        producer.send_raw(payments, b"broken", key="c1")
        producer.send(payments, payment(2))
    with pytest.raises(hr.InputError, match=r"\[0\]@1: the value is not one JSON object; pass on_rejected="):
        list(app.read(payments))
    rejected: list[tuple[bytes | None, int, str]] = []

    def on_rejected(record: hr.Record, reason: str) -> None:
        rejected.append((record.value, record.offset, reason))

    assert ids(list(app.read(payments, on_rejected=on_rejected))) == {"p1", "p2"}
    ((value, offset, reason),) = rejected
    assert (value, offset) == (b"broken", 1)
    assert reason.endswith("[0]@1: the value is not one JSON object")


def test_what_the_engine_rejected_is_read_with_its_reason(app: hr.App, make_topic: MakeTopic, group: str) -> None:
    from headrace.engine import sources

    node = make_topic(partitions=1, schema=None, key=None, format="bytes")
    headers = {
        sources.REASON_HEADER: "the value is empty",
        "headrace-topic": "payments",
        "headrace-partition": "2",
        "headrace-offset": "17",
        "headrace-timestamp": "2026-01-31T12:00:00.123000Z",
        "trace": b"\xff\x00",
    }
    with app.producer() as producer:
        producer.send_raw(node, b"", key="c1", headers=headers)
    reader = client_records.record_reader(node.rejected, None)
    with app.consumer(node, group=group, on_rejected=lambda record, _: rows.append(reader(record).row)) as consumer:
        rows: list[dict[str, Any]] = []
        while not rows:
            consumer.poll(1)
    assert rows[0] == {
        "reason": "the value is empty",
        "topic": "payments",
        "partition": 2,
        "offset": 17,
        "key": b"c1",
        "value": b"",
        "timestamp": datetime.datetime(2026, 1, 31, 12, 0, 0, 123000, datetime.UTC),
    }
    assert set(rows[0]) == set(sources.REJECTS_SCHEMA.names)


def test_a_topic_that_is_not_there_is_said_at_once(app: hr.App, group: str) -> None:
    app.topic("nowhere", "id STRING")
    with pytest.raises(hr.TopicNotFound, match="topic 'nowhere' does not exist"):
        app.consumer("nowhere", group=group)
    with pytest.raises(hr.TopicNotFound, match="topic 'nowhere' does not exist"):
        list(app.read("nowhere"))
    with pytest.raises(hr.InputError, match="start is 'begin'"):
        app.consumer("nowhere", group=group, start="begin")


Run = Callable[..., list[str]]


@pytest.fixture
def run(app: hr.App, payments: Topic, group: str) -> Run:
    """Handles until that many records were seen, processed or skipped."""

    def handle(until: int, function: Callable[..., None] | None = None, **options: Any) -> list[str]:
        handled: list[str] = []

        def note(record: hr.Record, *more: Any) -> None:
            if function is not None:
                function(record, *more)
            handled.append(record.row["id"])

        with app.consumer(payments, group=group) as consumer:
            seen = 0
            poll = consumer.poll

            def counted(seconds: float = 0.2) -> hr.Record | None:
                nonlocal seen
                record = poll(seconds)
                seen += record is not None
                if seen == until:
                    consumer.stop()
                return record

            consumer.poll = counted  # type: ignore[method-assign]
            consumer.handle(note, **options)
        return handled

    return handle


def test_an_id_that_comes_twice_is_handled_once(app: hr.App, payments: Topic, run: Run) -> None:
    with app.producer() as producer:
        producer.send_all(payments, [payment(1), payment(2), payment(1), payment(3), payment(2)])
    assert run(5, deduplicate_by="id") == ["p1", "p2", "p3"]


def test_memory_is_bounded_and_an_id_may_be_of_several_columns(app: hr.App, payments: Topic, run: Run) -> None:
    with app.producer() as producer:
        producer.send_all(payments, [payment(1), payment(1), payment(2), payment(3), payment(1)])
    assert run(5, deduplicate_by=["id", "card"], remember=2) == ["p1", "p2", "p3", "p1"]


def test_an_id_may_be_what_a_function_makes_of_the_record(app: hr.App, payments: Topic, run: Run) -> None:
    with app.producer() as producer:
        producer.send_all(payments, [payment(1), payment(2)])
    assert run(2, deduplicate_by=lambda record: record.row["card"]) == ["p1"]


def test_a_missing_or_null_id_is_an_error_that_names_the_record(app: hr.App, payments: Topic, run: Run) -> None:
    with app.producer() as producer:
        producer.send_all(payments, [payment(1) | {"amount": None}])
    with pytest.raises(hr.InputError, match="@0: no column 'idd' to deduplicate by; did you mean"):
        run(1, deduplicate_by="idd")
    with pytest.raises(hr.InputError, match="@0: the id 'amount' is null"):
        run(1, deduplicate_by="amount")


def test_stop_ends_the_handling_from_another_thread(app: hr.App, sent: Any, group: str) -> None:
    with app.consumer("payments", group=group) as consumer:
        threading.Timer(0.5, consumer.stop).start()
        consumer.handle(lambda record: None)


def test_the_effect_in_postgres_happens_once_whatever_crashes(
    app: hr.App, payments: Topic, run: Run, postgres_dsn: str, group: str
) -> None:
    import psycopg

    table = f"effects_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {table} (id text)")
        crash_at = "p3"

        def effect(record: hr.Record, inside: psycopg.Connection[Any]) -> None:
            inside.execute(f"INSERT INTO {table} VALUES (%s)", [record.row["id"]])
            if record.row["id"] == crash_at:
                raise ZeroDivisionError

        with app.producer() as producer:
            producer.send_all(payments, [payment(number) for number in (1, 2, 1, 3, 4)])
        with pytest.raises(ZeroDivisionError):
            run(5, effect, deduplicate_by="id", postgres=connection)
        crash_at = ""
        run(2, effect, deduplicate_by="id", postgres=connection)
        # As after a crash between the effect and the commit of the offset: all of it comes again.
        with app.producer() as producer:
            producer.send_all(payments, [payment(number) for number in (1, 2, 3, 4, 5)])
        assert run(5, effect, deduplicate_by="id", postgres=connection) == ["p5"]
        rows = connection.execute(f"SELECT id FROM {table} ORDER BY id").fetchall()
        assert [row[0] for row in rows] == ["p1", "p2", "p3", "p4", "p5"]


def test_ids_in_postgres_are_forgotten_when_told_so(
    app: hr.App, payments: Topic, run: Run, postgres_dsn: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    from headrace.clients import handling

    monkeypatch.setattr(handling, "HANDLED_BETWEEN_FORGETTING", 1)
    with psycopg.connect(postgres_dsn) as connection:
        with app.producer() as producer:
            producer.send_all(payments, [payment(1), payment(1), payment(2), payment(1)])
        options = {"deduplicate_by": "id", "postgres": connection}
        assert run(2, **options, forget_after="1 hour") == ["p1"]
        assert run(2, **options, forget_after="0 seconds") == ["p2", "p1"]
        kept = connection.execute("SELECT count(*) FROM headrace.handled WHERE consumer_group = %s", [group]).fetchone()
        assert kept == (0,)


def test_a_connection_in_a_transaction_is_refused(app: hr.App, payments: Topic, run: Run, postgres_dsn: str) -> None:
    import psycopg

    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("SELECT 1")
        with pytest.raises(hr.InputError, match="has an open transaction"):
            run(1, deduplicate_by="id", postgres=connection)
        with pytest.raises(hr.InputError, match="needs ids to deduplicate by"):
            run(1, postgres=connection)
