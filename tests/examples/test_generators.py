"""The generators' books are right, and what they make is what they say."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

import fraud
import headrace as hr
import payments_generator as source
import rides_generator
from headrace.clients.decoding import RowReader
from headrace.clients.rows import RowWriter
from headrace.topology import Duration

START = datetime(2026, 1, 31, 12, tzinfo=UTC)


def made(count: int, seed: int = 7) -> list[source.Payment]:
    payments = source.Payments(seed)
    return [payments.make(START + timedelta(seconds=number / 50)) for number in range(count)]


def test_the_same_seed_makes_the_same_payments() -> None:
    assert made(300) == made(300) != made(300, seed=8)


def test_payments_of_every_kind_are_made_in_their_shares() -> None:
    kinds = Counter(payment.kind for payment in made(4000))
    for kind, share in source.SHARES.items():
        assert kinds[kind] == pytest.approx(40 * share, rel=0.4)


def test_stragglers_are_well_inside_the_lateness_or_a_day_beyond_it() -> None:
    lateness = timedelta(microseconds=fraud.payments.lateness.microseconds)
    assert Duration.of("15 seconds") == fraud.payments.lateness
    newest = START
    for number, payment in enumerate(made(4000)):
        newest = START + timedelta(seconds=number / 50)
        if payment.row is None:
            continue
        behind = newest - payment.row["at"]
        if payment.kind == source.LATE:
            assert behind >= timedelta(days=1)
        else:
            assert behind < lateness / 2


def test_only_what_is_malformed_does_not_fit_the_topic() -> None:
    writer = RowWriter(fraud.payments)
    for payment in made(2000):
        if payment.row is not None:
            writer.write(payment.row)
    reader = RowReader(fraud.payments.schema)
    said = {"id": "p1", "card": "c", "amount": 1.5, "country": "DE", "at": START.isoformat()}
    reader.read(b'{"id": "p1", "card": "c", "amount": 1.5, "country": "DE", "at": "2026-01-31T12:00:00+00:00"}')
    broken = list(source._broken(said))
    assert len(set(broken)) == len(broken)
    unreadable = 0
    for value in broken:
        try:
            reader.read(value)
        except hr.InputError:
            unreadable += 1
    # The others have no key, no event time, or one in the year 2099: rows that cannot be used.
    assert unreadable == len(broken) - 3


def test_the_books_count_windows_as_windows_are_counted() -> None:
    books = source.Books()
    for seconds in (0, 1, 2, 3, 4, 19, 24):
        at = START + timedelta(seconds=seconds)
        row = {"id": str(seconds), "card": "a", "amount": Decimal("1.50"), "country": "DE", "at": at}
        books.enter(source.Payment(source.ORDINARY, "a", row))
    assert books.spent() == {("a", START): (7, Decimal("10.50"))}
    # The sixth sees five before it; the seventh, after 24 seconds, no more than those of the last twenty.
    assert books.bursts(timedelta(seconds=20), more_than=5) == {"19": (6, Decimal("9.00"), 1)}


def test_a_city_minute_prices_what_it_holds() -> None:
    minutes = rides_generator.City().minutes(START)
    calm, _, rush = (next(minutes) for _ in range(3))
    assert all(START <= row["at"] < START + timedelta(minutes=1) for row in calm.requests + calm.drivers)
    assert max(price for _, _, price in calm.prices().values()) < max(price for _, _, price in rush.prices().values())
    assert all(Decimal(1) <= price <= Decimal(3) for _, _, price in rush.prices().values())
