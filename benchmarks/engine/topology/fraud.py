"""The app that is measured: antifraud as it was when the benchmark was made. Figures are compared over months, so it is
never edited, whatever becomes of the example.
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
cards = app.table("cards", "card STRING, owner STRING, home STRING", key="card")


@app.stream(key="card")
def accepted(payments):
    """Each payment once: a terminal that got no answer sends it again."""
    return hr.dedup(payments, on="id", within="2 days")


@app.stream(key="card")
def known(accepted, cards):
    """Each payment beside whose card it was when it was made."""
    return hr.enrich(accepted, cards, on="card", how="left")


@app.table(key="id")
def bursts(known):
    """Payments that are one of more than five of their card within twenty seconds.

    Each is answered when it comes, and once more if a straggler alters the answer. What is too late for that is in
    the channel `bursts.late`.
    """
    return (
        hr.windowed(known, hr.sliding("20 seconds"), by="card", late="divert", emit="changes")
        .agg(n=hr.count(), total=hr.sum("amount"), countries=hr.count_distinct("country"))
        .having("n > 5")
    )


@app.view(key="id")
def alarms(bursts):
    """Bursts away from home: the PostgreSQL table fraud.alarms."""
    return bursts.where("country <> home")


@app.view(key=["card", "window_start"])
def spend(accepted):
    """What each card spends in an hour: the PostgreSQL table fraud.spend, up to date within a moment."""
    return hr.windowed(accepted, hr.tumbling("1 hour")).agg(n=hr.count(), total=hr.sum("amount"))


@app.stream(key="card")
def tardy(rows=bursts.late):
    """Payments that came too late to be part of a burst."""
    return rows.select("id", "card", "at", "amount")
