"""An app with every operator that keeps state, as a process that can be struck at named places."""

from __future__ import annotations

import sys
from typing import Any

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


if __name__ == "__main__":
    sys.exit(main(app))
