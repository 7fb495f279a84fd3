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


@app.step
def signals(requests, drivers):
    """Demand and supply side by side: a row is one or the other."""
    demand = requests.selectExpr("zone", "at", "id AS request", "CAST(NULL AS STRING) AS driver")
    supply = drivers.where("free").selectExpr("zone", "at", "CAST(NULL AS STRING) AS request", "driver")
    return demand.unionByName(supply)


@app.stream(key="zone")
def balance(signals):
    """How many rides were asked for in a zone within a minute, and how many drivers were there to take them."""
    return hr.windowed(signals, hr.tumbling("1 minute"), by="zone").agg(
        demand=hr.count_distinct("request"), supply=hr.count_distinct("driver")
    )


@app.stream(key="zone")
def prices(balance):
    """The usual price while there are drivers enough, up to three times as much where there are not."""
    scarcity = "CASE WHEN supply = 0 THEN 3 ELSE demand / supply END"
    return balance.selectExpr(
        "zone",
        "window_end",
        "demand",
        "supply",
        f"CAST(least(3, greatest(1, {scarcity})) AS DECIMAL(3,2)) AS multiplier",
    )


@app.view(key="zone", order_by="window_end")
def tariff(prices):
    """What to charge now: the PostgreSQL table pricing.tariff, one row a zone."""
    return prices
