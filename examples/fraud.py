"""Antifraud: cards that are used in bursts, and what each card spends.

Run it with `headrace run examples/fraud.py`; `python examples/fraud_demo.py` runs it and sends it payments.
"""

import headrace as hr

app = hr.App("fraud")

payments = app.topic(
    "payments",
    "id STRING, card STRING, amount DECIMAL(12,2), country STRING, at TIMESTAMP",
    key="card",
    event_time="at",
    lateness="15 seconds",
)


@app.stream(key="card")
def accepted(payments):
    """Each payment once: a terminal that got no answer sends it again."""
    return payments.dropDuplicatesWithinWatermark(["id"])


@app.stream(key="card")
def bursts(accepted):
    """Cards with more than five payments within twenty seconds, and in how many countries."""
    return (
        hr.windowed(accepted, hr.hopping("20 seconds", "5 seconds"))
        .agg(n=hr.count(), total=hr.sum("amount"), countries=hr.count_distinct("country"))
        .having("n > 5")
    )


@app.view(key=["card", "window_start"])
def spend(accepted):
    """What each card spends in an hour: the PostgreSQL table fraud.spend, up to date within a moment."""
    return hr.windowed(accepted, hr.tumbling("1 hour")).agg(n=hr.count(), total=hr.sum("amount"))
