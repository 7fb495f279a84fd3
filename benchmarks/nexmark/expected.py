"""What the queries must give: plain SQL over all events at once, and the comparison with what was found in a topic."""

from datetime import datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.nexmark.events import TOPICS
from benchmarks.nexmark.queries import Query

SHOWN = 5

# A tumbling window is said by its start: what is left of a time without its rest.
TEN_SECONDS = """timestamp_micros(unix_micros(at) - pmod(unix_micros(at), 10000000)) AS window_start,
    timestamp_micros(unix_micros(at) - pmod(unix_micros(at), 10000000) + 10000000) AS window_end"""

SQL = {
    "q0": "SELECT auction, bidder, price, channel, url, at FROM bid",
    "q1": "SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23,3)) AS price, channel, url, at FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """
        SELECT a.id AS auction, a.seller, p.name, p.city, p.state
        FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')
        """,
    "q4": """
        SELECT category, avg(final) AS average
        FROM (
            SELECT a.id, a.category, max(b.price) AS final
            FROM auction a JOIN bid b ON a.id = b.auction AND b.at BETWEEN a.at AND a.expires
            GROUP BY a.id, a.category
        )
        GROUP BY category
        """,
    "q5": """
        WITH hopped AS (
            SELECT auction,
                explode(sequence(0, 4)) AS back,
                unix_micros(at) - pmod(unix_micros(at), 2000000) AS hop
            FROM bid
        ), counts AS (
            SELECT auction, count(*) AS bids, hop - back * 2000000 AS begun
            FROM hopped GROUP BY auction, hop - back * 2000000
        ), most AS (
            SELECT begun, max(bids) AS bids FROM counts GROUP BY begun
        )
        SELECT c.auction, c.bids, timestamp_micros(begun) AS start, timestamp_micros(begun + 10000000) AS end
        FROM counts c JOIN most USING (begun, bids)
        """,
    "q7": f"""
        WITH placed AS (SELECT *, {TEN_SECONDS} FROM bid),
        highest AS (SELECT window_start, max(price) AS price FROM placed GROUP BY window_start)
        SELECT auction, bidder, price, channel, url, at, window_start, window_end
        FROM placed JOIN highest USING (window_start, price)
        """,
    "q8": f"""
        SELECT DISTINCT id, name, window_start, window_end
        FROM (SELECT id, name, {TEN_SECONDS} FROM person)
        JOIN (SELECT seller AS id, {TEN_SECONDS} FROM auction) USING (id, window_start, window_end)
        """,
    "q11": """
        WITH paused AS (
            SELECT bidder, at,
                coalesce(at >= lag(at) OVER (PARTITION BY bidder ORDER BY at) + INTERVAL 10 SECONDS, true) AS opens
            FROM bid
        ), numbered AS (
            SELECT bidder, at, count_if(opens) OVER (PARTITION BY bidder ORDER BY at) AS session FROM paused
        )
        SELECT bidder, min(at) AS window_start, max(at) + INTERVAL 10 SECONDS AS window_end, count(*) AS bids
        FROM numbered GROUP BY bidder, session
        """,
    # When a bid was read nobody knows afterwards; but in one window it was, and in no other.
    "q12": "SELECT bidder, count(*) AS bids FROM bid GROUP BY bidder",
    "q13": """
        SELECT b.auction, b.bidder, b.price, b.at, s.value
        FROM bid b JOIN side_input s ON b.auction % 10000 = s.key
        """,
}
OF_FOUND = {
    "q12": """
        SELECT bidder, sum(bids) AS bids FROM found
        WHERE window_end = window_start + INTERVAL 10 SECONDS AND pmod(unix_micros(window_start), 10000000) = 0
        GROUP BY bidder
        """
}
"""What is compared of a result, where that is not the whole."""


def differences(spark: SparkSession, query: Query, found: DataFrame, folder: Path, end: datetime) -> list[str]:
    """What a topic has and the SQL over the files of the events has not, and the other way round, in words."""
    for topic in TOPICS:
        spark.read.parquet(str(folder / f"{topic}.parquet")).createOrReplaceTempView(topic)
    wanted = spark.sql(SQL[query.name])
    if query.name in OF_FOUND:
        found.createOrReplaceTempView("found")
        found = spark.sql(OF_FOUND[query.name])
    if query.ends is not None:
        known = f"`{query.ends}` <= TIMESTAMP '{end:%Y-%m-%d %H:%M:%S}'"
        found, wanted = found.where(known), wanted.where(known)
    found, wanted = found.select(*wanted.columns).cache(), wanted.cache()
    try:
        if wanted.isEmpty():
            return ["the SQL gives nothing: too few events"]
        return [
            *_told("not in the topic", wanted.exceptAll(found)),
            *_told("not by the SQL", found.exceptAll(wanted)),
        ]
    finally:
        found.unpersist()
        wanted.unpersist()


def _told(what: str, rows: DataFrame) -> list[str]:
    count = rows.count()
    return [f"{count} rows {what}, as {row}" for row in rows.limit(SHOWN).collect()]
