"""An app with every operator that keeps state, as a process that can be struck at named places."""

from __future__ import annotations

import sys
from typing import Any

import polars as pl

import headrace as hr
from tests.engine.numbers_run import main

app = hr.App("operators")
numbers = app.topic("numbers", "n BIGINT, k STRING, at TIMESTAMP", key="k", event_time="at", lateness="1 minute")
homes = app.table("homes", "k STRING, home STRING", key="k")


@app.stream(key="k")
def tumbles(numbers: Any) -> Any:
    return hr.windowed(numbers, hr.tumbling("5 seconds"), late="divert").agg(count=hr.count(), total=hr.sum("n"))


@app.stream(key="k")
def slides(numbers: Any) -> Any:
    return hr.windowed(numbers, hr.sliding("5 seconds"), late="divert").agg(count=hr.count(), total=hr.sum("n"))


@app.stream(key="k")
def bursts(numbers: Any) -> Any:
    active = numbers.filter("n % 50 < 40 OR n < 0")
    return hr.windowed(active, hr.session("300 milliseconds")).agg(count=hr.count(), total=hr.sum("n"))


@app.stream(key="k")
def opened(numbers: Any) -> Any:
    session = hr.session(opens="n % 5 = 0", closes="n % 5 = 3", timeout="1 second")
    return hr.windowed(numbers, session).agg(count=hr.count(), total=hr.sum("n"))


@app.stream(key="k")
def enriched(numbers: Any, homes: Any) -> Any:
    return hr.enrich(numbers, homes, on="k", as_of="now", how="left")


@app.stream(key="k")
def spaced(numbers: Any) -> Any:
    return hr.dedup(numbers, on="k", within="1 second")


@app.stream(key="n", channels=["even", "odd"])
def halves(numbers: Any) -> Any:
    rows = numbers.selectExpr("n", "at", "CAST(floor(n / 2) AS BIGINT) AS pair")
    return {"even": rows.filter("n % 2 = 0"), "odd": rows.filter("n % 2 = 1")}


@app.stream(key="pair")
def pairs(even: Any = halves.even, odd: Any = halves.odd) -> Any:
    return hr.gather(even, odd, on="pair", within="10 minutes", names=["even", "odd"])


def counted(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.group_by("k", "window_end").agg(
        pl.len().cast(pl.Int64).alias("count"), pl.col("n").sum().alias("total")
    )


@app.stream(key="k")
def applied(numbers: Any) -> Any:
    windows = hr.windowed(numbers, hr.tumbling("5 seconds"), late="divert")
    return windows.apply(counted, schema="k STRING, window_end TIMESTAMP, count BIGINT, total BIGINT")


@app.stream(key="pair")
def joined(even: Any = halves.even, odd: Any = halves.odd) -> Any:
    other = odd.selectExpr("pair", "n AS m", "at AS also_at")
    return hr.join(even, other, on="pair", within="10 minutes")


@app.table(key="k")
def latest(numbers: Any) -> Any:
    return numbers.filter("n >= 0").select("k", "n")


@app.table(key="k")
def lived(latest: Any, homes: Any) -> Any:
    return hr.join(latest, homes, on="k")


if __name__ == "__main__":
    sys.exit(main(app))
