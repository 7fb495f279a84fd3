"""The queries as Headrace topologies. `says` tells what each one asks, in the words of the auction house."""

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headrace as hr
from benchmarks.nexmark.events import AUCTION, BID, KEYS, LATENESS, LONGEST_AUCTION, PERSON, SCHEMAS, SIDE
from headrace.engine.read.tables import Table
from headrace.topology import Stream, TableNode, TableTopic, Topic

LONGEST = f"{int(LONGEST_AUCTION.total_seconds())} seconds"
AS_LATE_AS_JOINED = f"{int(LONGEST_AUCTION.total_seconds()) + 4} seconds"
AFTER_THE_LONGEST = f"{int(LONGEST_AUCTION.total_seconds()) + 1} seconds"
BIDS = "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, at TIMESTAMP"
WINDOW = "window_start TIMESTAMP, window_end TIMESTAMP"


@dataclass(frozen=True)
class House:
    """The topics of the auction house as an app declares them."""

    app: hr.App
    prefix: str = ""

    def persons(self) -> Topic:
        return self._topic(PERSON)

    def auctions(self) -> Topic:
        return self._topic(AUCTION)

    def bids(self) -> Topic:
        return self._topic(BID)

    def table(self, name: str) -> TableTopic:
        return self.app.table(name, SCHEMAS[name], key=KEYS[name], topic=self.prefix + name)

    def bids_as_they_come(self) -> Topic:
        """The time of a bid is when it is read."""
        return self.app.topic(
            BID, SCHEMAS[BID], key=KEYS[BID], event_time=hr.processing_time(), topic=self.prefix + BID
        )

    def _topic(self, name: str) -> Topic:
        return self.app.topic(
            name, SCHEMAS[name], key=KEYS[name], event_time="at", lateness=LATENESS, topic=self.prefix + name
        )


@dataclass(frozen=True)
class Query:
    """A query, and what the rows of its last node look like."""

    says: str
    result: str
    declare: Callable[[House], Stream | TableNode]
    reads: tuple[str, ...] = (BID,)
    ends: str | None = None
    """The column that says when a result is known, where it takes a later event to know it."""

    @property
    def name(self) -> str:
        return self.declare.__name__

    @property
    def columns(self) -> list[str]:
        return [column.split()[0] for column in self.result.split(", ")]


def q0(house: House) -> Stream:
    house.bids()

    @house.app.stream(key="auction")
    def passed(bid: DataFrame) -> DataFrame:
        return bid

    return passed


def q1(house: House) -> Stream:
    house.bids()

    @house.app.stream(key="auction")
    def in_euros(bid: DataFrame) -> DataFrame:
        return bid.withColumn("price", F.expr("CAST(0.908 * price AS DECIMAL(23,3))"))

    return in_euros


def q2(house: House) -> Stream:
    house.bids()

    @house.app.stream(key="auction")
    def chosen(bid: DataFrame) -> DataFrame:
        return bid.where("auction % 123 = 0").select("auction", "price")

    return chosen


def q3(house: House) -> TableNode:
    house.table(AUCTION)
    house.table(PERSON)

    @house.app.table(key="auction")
    def nearby(auction: Table, person: Table) -> Table:
        offered = auction.where("category = 10").select("id AS auction", "seller")
        sellers = person.where("state IN ('OR', 'ID', 'CA')").select("id", "name", "city", "state")
        return hr.join(offered, sellers, on={"seller": "id"})

    return nearby


def q4(house: House) -> TableNode:
    house.auctions()
    house.bids()

    # Of an auction that is read after its bids, all of them come out at once, the oldest and the newest.
    @house.app.stream(key="id", lateness=AS_LATE_AS_JOINED)
    def valid(auction: DataFrame, bid: DataFrame) -> DataFrame:
        placed = bid.select("auction", "price", F.col("at").alias("placed_at"))
        opened = auction.select("id", "category", "at", "expires")
        both = hr.join(opened, placed, on={"id": "auction"}, within=LONGEST)
        return both.where("placed_at BETWEEN at AND expires").select("id", "category", "price", "joined_at")

    @house.app.stream(key="id")
    def won(valid: DataFrame) -> DataFrame:
        """No auction lasts as long as the pause after which its bids are complete: each is one session."""
        session = hr.session(AFTER_THE_LONGEST)
        return hr.windowed(valid, session, by=["id", "category"]).agg(final=hr.max("price"))

    @house.app.table(key="category")
    def averages(won: DataFrame) -> DataFrame:
        return won.groupBy("category").agg(F.avg("final").alias("average"))

    return averages


def q5(house: House) -> Stream:
    house.bids()

    @house.app.stream(key="auction")
    def counts(bid: DataFrame) -> DataFrame:
        hopping = hr.hopping("10 seconds", "2 seconds")
        return hr.windowed(bid, hopping, by="auction").agg(bids=hr.count())

    @house.app.stream(key="auction")
    def hottest(counts: DataFrame) -> DataFrame:
        """The windows of the first node end every two seconds: those that end together are a window of this one."""
        ended = counts.select("auction", "bids", F.col("window_start").alias("start"), F.col("window_end").alias("end"))
        together = hr.windowed(ended, hr.tumbling("2 seconds"), by=[])
        return together.apply(most_bids, schema="auction BIGINT, bids BIGINT, start TIMESTAMP, end TIMESTAMP")

    return hottest


def most_bids(rows: pl.DataFrame) -> pl.DataFrame:
    hottest = rows.filter(pl.col("bids") == pl.col("bids").max().over("end"))
    return hottest.select("auction", "bids", "start", "end")


def q7(house: House) -> Stream:
    house.bids()

    @house.app.stream(key="auction")
    def highest(bid: DataFrame) -> DataFrame:
        schema = f"{BIDS}, {WINDOW}"
        return hr.windowed(bid, hr.tumbling("10 seconds"), by=[]).apply(highest_bids, schema=schema)

    return highest


def highest_bids(rows: pl.DataFrame) -> pl.DataFrame:
    highest = rows.filter(pl.col("price") == pl.col("price").max().over("window_end"))
    return highest.select("auction", "bidder", "price", "channel", "url", "at", "window_start", "window_end")


def q8(house: House) -> Stream:
    house.persons()
    house.auctions()

    @house.app.stream(key="seller")
    def sellers(auction: DataFrame) -> DataFrame:
        return hr.windowed(auction, hr.tumbling("10 seconds"), by="seller").agg(opened=hr.count())

    @house.app.stream(key="id")
    def newcomers(person: DataFrame, sellers: DataFrame) -> DataFrame:
        joined = person.select("id", "name", "at")
        both = hr.join(joined, sellers, on={"id": "seller"}, within="10 seconds")
        return both.where("at >= window_start AND at < window_end").select("id", "name", "window_start", "window_end")

    return newcomers


def q11(house: House) -> Stream:
    house.bids()

    @house.app.stream(key="bidder")
    def sessions(bid: DataFrame) -> DataFrame:
        return hr.windowed(bid, hr.session("10 seconds"), by="bidder").agg(bids=hr.count())

    return sessions


def q12(house: House) -> TableNode:
    house.bids_as_they_come()

    @house.app.table(key=["bidder", "window_start"])
    def by_the_clock(bid: DataFrame) -> DataFrame:
        return hr.windowed(bid, hr.tumbling("10 seconds"), by="bidder").agg(bids=hr.count())

    return by_the_clock


def q13(house: House) -> Stream:
    house.bids()
    house.table(SIDE)

    @house.app.stream(key="auction")
    def described(bid: DataFrame, side_input: Table) -> DataFrame:
        slotted = bid.withColumn("slot", F.expr("auction % 10000"))
        known = hr.enrich(slotted, side_input, on={"slot": "key"}, as_of="now")
        return known.select("auction", "bidder", "price", "at", "value")

    return described


_ALL = (
    Query("every bid, as it is: what reading and writing cost", BIDS, q0),
    Query("every bid, its price in euros", BIDS.replace("price BIGINT", "price DECIMAL(23,3)"), q1),
    Query("the bids for some auctions, chosen by their number", "auction BIGINT, price BIGINT", q2),
    Query(
        "who in Oregon, Idaho or California offers something of category 10: a join that never forgets, so of tables",
        "auction BIGINT, seller BIGINT, name STRING, city STRING, state STRING",
        q3,
        reads=(AUCTION, PERSON),
    ),
    Query(
        "the average price of a category: of the highest bids that came while their auctions were open",
        "category BIGINT, average DOUBLE",
        q4,
        reads=(AUCTION, BID),
    ),
    Query(
        "which auctions had the most bids in the last ten seconds, every two seconds",
        "auction BIGINT, bids BIGINT, start TIMESTAMP, end TIMESTAMP",
        q5,
        ends="end",
    ),
    Query("the highest bids of every ten seconds", f"{BIDS}, {WINDOW}", q7, ends="window_end"),
    Query(
        "who joined and opened an auction in the same ten seconds",
        f"id BIGINT, name STRING, {WINDOW}",
        q8,
        reads=(PERSON, AUCTION),
        ends="window_end",
    ),
    Query(
        "how many bids a bidder made without a pause of ten seconds",
        f"bidder BIGINT, {WINDOW}, bids BIGINT",
        q11,
        ends="window_end",
    ),
    Query(
        "how many bids of a bidder came in every ten seconds of the clock on the wall",
        f"bidder BIGINT, {WINDOW}, bids BIGINT",
        q12,
    ),
    Query(
        "every bid beside a row of a table that does not change",
        "auction BIGINT, bidder BIGINT, price BIGINT, at TIMESTAMP, value STRING",
        q13,
    ),
)
QUERIES = {query.name: query for query in _ALL}
