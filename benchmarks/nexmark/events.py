"""An auction house: people who join, auctions they open, bids on them; the same ones for the same number of events.

Of 50 events one is a person, three are auctions, 46 are bids. Whatever their number, they span five minutes of event
time, up to two seconds out of order. Half of the bids are for the auction that everybody looks at just now, a quarter
are by one eager bidder, and everyone rests from time to time, so that there are sessions. Prices are round, so
that the highest bid may be held by several.

After the last event a few more tell nothing but that time goes on, so that all windows before them close. What ends
after `Story.end` is theirs, and no part of any result.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

PERSON, AUCTION, BID, SIDE = "person", "auction", "bid", "side_input"
TOPICS = (PERSON, AUCTION, BID, SIDE)
SCHEMAS = {
    PERSON: "id BIGINT, name STRING, email STRING, city STRING, state STRING, at TIMESTAMP",
    AUCTION: "id BIGINT, item STRING, initial_bid BIGINT, reserve BIGINT, seller BIGINT, category BIGINT, "
    "at TIMESTAMP, expires TIMESTAMP",
    BID: "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, at TIMESTAMP",
    SIDE: "key BIGINT, value STRING",
}
KEYS = {PERSON: "id", AUCTION: "id", BID: "auction", SIDE: "key"}
PARTITIONS = 4
SIDE_ROWS = 10_000
LATENESS = "4 seconds"
LONGEST_AUCTION = timedelta(seconds=20)

SECOND = 1_000_000
START = datetime(2026, 1, 1, tzinfo=UTC)
START_US = int(START.timestamp()) * SECOND
SPAN = 300 * SECOND
DISORDER = 2 * SECOND
ATTENTION, EAGERNESS, WAKING = 5 * SECOND, 10 * SECOND, 15 * SECOND
"""For how long an auction draws everybody's bids, a bidder is eager, and nobody falls asleep or wakes up."""
TAIL_STEP, TAIL_STEPS = SECOND, 75
"""Steps shorter than the lateness: a batch that has a step of one partition and not of another makes nothing late."""
LAST_WINDOW = 25 * SECOND
FIRST_ID = 1_000
CHUNK = 50_000
LIMIT = 120.0

NAMES = ("Ada", "Bela", "Cora", "Dov", "Elif", "Finn", "Gita", "Hugo", "Ines", "Jun", "Kofi", "Lena")
SURNAMES = ("Abel", "Brandt", "Costa", "Dube", "Eklund", "Fabre", "Gupta", "Horvat", "Ito", "Jansen")
PLACES = (("Portland", "OR"), ("Bend", "OR"), ("Boise", "ID"), ("Oakland", "CA"), ("Fresno", "CA"), ("Seattle", "WA"))
PLACES += (("Phoenix", "AZ"), ("Denver", "CO"), ("Austin", "TX"), ("Omaha", "NE"), ("Nampa", "ID"), ("Salem", "MA"))
ITEMS = ("lamp", "clock", "atlas", "kettle", "violin", "globe", "stamp", "chess set")
CHANNELS = ("search", "mail", "app", "partner")


class Person(NamedTuple):
    id: int
    name: str
    email: str
    city: str
    state: str
    at: int

    def json(self) -> str:
        return (
            f'{{"id":{self.id},"name":"{self.name}","email":"{self.email}","city":"{self.city}",'
            f'"state":"{self.state}","at":"{_shown(self.at)}"}}'
        )


class Auction(NamedTuple):
    id: int
    item: str
    initial_bid: int
    reserve: int
    seller: int
    category: int
    at: int
    expires: int

    def json(self) -> str:
        return (
            f'{{"id":{self.id},"item":"{self.item}","initial_bid":{self.initial_bid},"reserve":{self.reserve},'
            f'"seller":{self.seller},"category":{self.category},"at":"{_shown(self.at)}",'
            f'"expires":"{_shown(self.expires)}"}}'
        )


class Bid(NamedTuple):
    auction: int
    bidder: int
    price: int
    channel: str
    url: str
    at: int

    def json(self) -> str:
        return (
            f'{{"auction":{self.auction},"bidder":{self.bidder},"price":{self.price},"channel":"{self.channel}",'
            f'"url":"{self.url}","at":"{_shown(self.at)}"}}'
        )


class Side(NamedTuple):
    key: int
    value: str

    def json(self) -> str:
        return f'{{"key":{self.key},"value":"{self.value}"}}'


Event: TypeAlias = Person | Auction | Bid | Side
TOPIC_OF: dict[type[Event], str] = {Person: PERSON, Auction: AUCTION, Bid: BID, Side: SIDE}


@dataclass(frozen=True)
class Story:
    """So many persons, auctions and bids, and the side input; times are microseconds since 1970."""

    events: int
    seed: int = 7

    @property
    def end(self) -> datetime:
        """All that ends by then is known once the last event was processed."""
        return START + timedelta(microseconds=SPAN + LAST_WINDOW)

    def __iter__(self) -> Iterator[Event]:
        yield from (Side(key, f"value-{key * 7919 % SIDE_ROWS:05d}") for key in range(SIDE_ROWS))
        house = _House(self.seed, self.events)
        for number in range(self.events):
            yield house.event(number)
        for step in range(1, TAIL_STEPS + 1):
            at = START_US + SPAN + step * TAIL_STEP
            for _ in range(PARTITIONS):
                yield from house.passing(at)


class _House:
    """Who is there, and what is going on."""

    def __init__(self, seed: int, events: int) -> None:
        self._chance = random.Random(seed)
        self._events = events
        self._persons = self._auctions = 0
        self._looked_at, self._eager = FIRST_ID, FIRST_ID
        self._attention = self._eagerness = -1
        # A fifth of all people bid at a time, and a twentieth of all auctions are bid for.
        self._bidders, self._open = max(10, events // 50 // 5), max(10, events * 3 // 50 // 20)

    def event(self, number: int) -> Event:
        due = number * SPAN // self._events
        at = START_US + due - self._chance.randrange(DISORDER)
        place = number % 50
        if place == 0:
            return self._person(due, at)
        if place <= 3:
            return self._auction(due, at)
        return self._bid(due, at)

    def passing(self, at: int) -> Iterator[Event]:
        """Events of nobody's concern: their time is all they tell, also to those who join them."""
        self._persons += 1
        self._auctions += 1
        person, auction = FIRST_ID + self._persons, FIRST_ID + self._auctions
        yield Person(person, "Nobody", "", "", "", at)
        yield Auction(auction, "nothing", 1, 1, person, 0, at, at + SECOND)
        yield Bid(auction, 0, 1, "", "", at)

    def _person(self, due: int, at: int) -> Person:
        self._persons += 1
        id = FIRST_ID + self._persons
        if due // EAGERNESS != self._eagerness:
            self._eagerness, self._eager = due // EAGERNESS, id
        name = f"{self._chance.choice(NAMES)} {self._chance.choice(SURNAMES)}"
        return Person(id, name, f"{id}@mail.example", *self._chance.choice(PLACES), at)

    def _auction(self, due: int, at: int) -> Auction:
        self._auctions += 1
        id = FIRST_ID + self._auctions
        if due // ATTENTION != self._attention:
            self._attention, self._looked_at = due // ATTENTION, id
        is_new = self._chance.randrange(3) == 0
        seller = FIRST_ID + self._persons - (0 if is_new else self._chance.randrange(min(self._persons, self._bidders)))
        price = self._price()
        longest = int(LONGEST_AUCTION.total_seconds()) * SECOND
        expires = at + self._chance.randrange(2 * SECOND, longest)
        category = 10 + self._chance.randrange(5)
        return Auction(id, self._chance.choice(ITEMS), price, 2 * price, seller, category, at, expires)

    def _bid(self, due: int, at: int) -> Bid:
        chance = self._chance
        auction = self._looked_at
        if chance.random() < 0.5:
            auction = FIRST_ID + self._auctions - chance.randrange(min(self._auctions, self._open))
        bidder = self._eager
        if chance.random() < 0.75:
            bidder = FIRST_ID + self._persons - chance.randrange(min(self._persons, self._bidders))
        if bidder % 3 == due // WAKING % 3:
            bidder -= 1
        return Bid(auction, bidder, self._price(), chance.choice(CHANNELS), f"https://bid.example/{auction}", at)

    def _price(self) -> int:
        return self._chance.randrange(10, 100) * 10 ** self._chance.randrange(5)


def fill(address: str, story: Story, folder: Path, prefix: str = "") -> None:
    """Write a story to topics, and its rows to files of the same names, for those who do without topics."""
    for _ in filling(address, story, folder, prefix):
        pass


def filling(address: str, story: Story, folder: Path, prefix: str = "", parts: int = 1) -> Iterator[int]:
    """The same in parts of so many events: it stops after each, once the topics hold it.

    Partitions take turns, whatever the key: so all of them are equally far in event time.
    """
    admin = AdminClient({"bootstrap.servers": address})
    for made in admin.create_topics([NewTopic(prefix + topic, PARTITIONS, 1) for topic in TOPICS]).values():
        made.result(60)
    producer = Producer({"bootstrap.servers": address, "linger.ms": 20, "queue.buffering.max.messages": 500_000})
    written = dict.fromkeys(TOPICS, 0)
    files = {topic: _Rows(folder / f"{topic}.parquet", SCHEMAS[topic]) for topic in TOPICS}
    for number, event in enumerate(story, start=1):
        topic = TOPIC_OF[type(event)]
        files[topic].add(event)
        partition = written[topic] % PARTITIONS
        written[topic] += 1
        key = str(getattr(event, KEYS[topic]))
        while True:
            try:
                producer.produce(prefix + topic, event.json(), key, partition)
                break
            except BufferError:
                producer.poll(0.1)
        told = number - SIDE_ROWS
        if told > 0 and told % (story.events // parts) == 0 and told < story.events:
            _flush(producer)
            yield told
    _flush(producer)
    for rows in files.values():
        rows.close()
    yield story.events


def _flush(producer: Producer) -> None:
    if producer.flush(LIMIT):
        raise RuntimeError("the topics were not filled")


class _Rows:
    """Rows into a file, some at a time."""

    def __init__(self, path: Path, ddl: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        types = {"BIGINT": pa.int64(), "STRING": pa.string(), "TIMESTAMP": pa.timestamp("us", tz="UTC")}
        columns = (column.split() for column in ddl.split(", "))
        self._schema = pa.schema([(name, types[kind]) for name, kind in columns])
        self._writer = pq.ParquetWriter(path, self._schema)
        self._rows: list[Event] = []

    def add(self, row: Event) -> None:
        self._rows.append(row)
        if len(self._rows) == CHUNK:
            self._write()

    def close(self) -> None:
        self._write()
        self._writer.close()

    def _write(self) -> None:
        columns = list(zip(*self._rows, strict=True)) or [()] * len(self._schema)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
        self._writer.write_table(pa.table(arrays, schema=self._schema))
        self._rows = []


def _shown(at: int) -> str:
    seconds, rest = divmod(at, SECOND)
    return f"{_second(seconds)}.{rest:06d}Z"


@cache
def _second(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"
