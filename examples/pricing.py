"""Dynamic pricing: what a ride costs in each zone of a city, from how many ask for one and how many drivers are free.

Run it with `headrace run examples/pricing.py`; `python examples/pricing_demo.py` runs it through a rush hour.
"""

import headrace as hr

app = hr.App("pricing")

requests = app.topic(
    "requests",
    "id STRING, zone STRING, at TIMESTAMP",
    key="zone",
    event_time="at",
    lateness="10 seconds",
)
# Every driver says a few times a minute where he is, and whether he is free.
drivers = app.topic(
    "drivers",
    "driver STRING, zone STRING, free BOOLEAN, at TIMESTAMP",
    key="zone",
    event_time="at",
    lateness="10 seconds",
)


@app.stream(key="zone")
def demand(requests):
    """How many rides were asked for in a zone within a minute."""
    return hr.windowed(requests, hr.tumbling("1 minute")).agg(demand=hr.count())


@app.stream(key="zone")
def supply(drivers):
    """How many drivers were there to take them."""
    return hr.windowed(drivers.where("free"), hr.tumbling("1 minute")).agg(supply=hr.count_distinct("driver"))


@app.stream(key="zone")
def prices(demand, supply):
    """The usual price while there are drivers enough, up to three times as much where there are not.

    A minute without requests, or without drivers, is known for certain a moment after it is over.
    """
    counted = supply.withColumnRenamed("window_end", "counted_until")
    both = hr.join(demand, counted, on=["zone", "window_start"], within="10 seconds", how="full")
    return both.selectExpr(
        "zone", "window_start", "joined_at", "coalesce(demand, 0) AS demand", "coalesce(supply, 0) AS supply"
    ).selectExpr(
        "*",
        "CAST(CASE WHEN supply = 0 THEN 3 ELSE least(3, greatest(1, demand / supply)) END AS DECIMAL(3,2)) "
        "AS multiplier",
    )


@app.view(key="zone", order_by="window_start")
def tariff(prices):
    """What to charge now: the PostgreSQL table pricing.tariff, one row a zone."""
    return prices
