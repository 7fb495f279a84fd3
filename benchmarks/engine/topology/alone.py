"""Three apps of one node each, over the payments of the topology: nothing, one operator, the costliest operator."""

import headrace as hr

PAYMENTS = "id STRING, card STRING, amount DECIMAL(12,2), country STRING, at TIMESTAMP"

stateless = hr.App("stateless")
dedup = hr.App("dedup")
sliding = hr.App("sliding")


def _payments(app):
    return app.topic("payments", PAYMENTS, key="card", event_time="at", lateness="15 seconds")


_of_stateless, _of_dedup, _of_sliding = map(_payments, (stateless, dedup, sliding))


@stateless.stream(key="card")
def large(payments=_of_stateless):
    return payments.where("amount >= 1")


@dedup.stream(key="card")
def once(payments=_of_dedup):
    return hr.dedup(payments, on="id", within="2 days")


@sliding.table(key="id")
def recent(payments=_of_sliding):
    return (
        hr.windowed(payments, hr.sliding("20 seconds"), by="card", late="divert", emit="changes")
        .agg(n=hr.count(), total=hr.sum("amount"), countries=hr.count_distinct("country"))
        .having("n > 5")
    )
