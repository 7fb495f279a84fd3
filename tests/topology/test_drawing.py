from typing import Any

import headrace.topology as hr


def fraud() -> hr.Topology:
    app = hr.App("fraud")
    payments = app.topic(
        "payments",
        "id STRING, card STRING, at TIMESTAMP",
        key="card",
        event_time="at",
        lateness="1 minute",
        topic="prod.payments",
    )
    app.files("cards", "card STRING, owner STRING", path='<"cards">/', key="card")
    app.rate("ticks", rows_per_second=5)

    @app.step
    def clean(payments: Any) -> Any: ...

    @app.stream(key="card")
    def bursts(clean: Any) -> Any: ...

    @app.stream(key="card", guarantee="at-least-once", latency="real-time", channels=["eu", "us"])
    def split(bursts: Any) -> Any: ...

    @app.stream
    def alerts(bursts: Any, cards: Any, rows: Any = split.eu) -> Any: ...

    @app.view(key=["card", "window_start"])
    def spend(payments: Any) -> Any: ...

    @app.stream
    def end(tardy: Any = bursts.late, bad: Any = payments.rejected) -> Any: ...

    return app.topology()


def test_in_the_terminal() -> None:
    assert (
        hr.as_text(fraud())
        == """\
fraud

payments  topic · topic prod.payments · key card · event time at · lateness 1 minute
├─▶ clean  step
│  └─▶ bursts  stream · key card · exactly-once · writes prod.payments.rejected
│     ├─▶ split  stream · key card · channels eu, us · real-time · at-least-once
│     │  └─eu─▶ alerts  stream · exactly-once · writes bursts.rejected, cards.rejected, split.eu.rejected
│     ├─▶ alerts (above)
│     └─late─▶ end  stream · exactly-once · writes bursts.late.rejected
├─▶ spend  view · table fraud.spend · key card, window_start · exactly-once
└─rejected─▶ end (above)

cards  files · in <"cards">/ · key card
└─▶ alerts (above)

ticks  rate · 5 rows/s · event time timestamp · lateness 0 seconds
"""
    )


def test_as_mermaid() -> None:
    assert (
        hr.as_mermaid(fraud())
        == """\
flowchart LR
    node_payments[/"payments<br/>topic prod.payments<br/>key card<br/>event time at<br/>lateness 1 minute"/]
    node_cards[/"cards<br/>in &lt;&quot;cards&quot;&gt;/<br/>key card"/]
    node_ticks[/"ticks<br/>5 rows/s<br/>event time timestamp<br/>lateness 0 seconds"/]
    node_clean("clean")
    node_bursts["bursts<br/>key card<br/>exactly-once<br/>writes prod.payments.rejected"]
    node_split["split<br/>key card<br/>channels eu, us<br/>real-time<br/>at-least-once"]
    node_alerts["alerts<br/>exactly-once<br/>writes bursts.rejected, cards.rejected, split.eu.rejected"]
    node_spend[("spend<br/>table fraud.spend<br/>key card, window_start<br/>exactly-once")]
    node_end["end<br/>exactly-once<br/>writes bursts.late.rejected"]
    node_payments --> node_clean
    node_clean --> node_bursts
    node_bursts --> node_split
    node_bursts --> node_alerts
    node_cards --> node_alerts
    node_split -->|"eu"| node_alerts
    node_payments --> node_spend
    node_bursts -->|"late"| node_end
    node_payments -->|"rejected"| node_end
"""
    )


def test_an_app_of_nothing() -> None:
    topology = hr.App("empty").topology()
    assert hr.as_text(topology) == "empty\n"
    assert hr.as_mermaid(topology) == "flowchart LR\n"
