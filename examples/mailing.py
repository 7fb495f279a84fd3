"""Mails as jobs: workers send them, retry what fails, and put aside what cannot be sent.

Run it with `headrace run examples/mailing.py`, or the workers alone, as often as needed, with
`headrace work examples/mailing.py`. `examples/mailing_demo.py` shows it at work.
"""

import random
import time
from typing import Any

import headrace as hr

app = hr.App("mailing")

sent = app.topic("mails_sent", "address STRING, message_id STRING")
mails = app.queue("mails", "address STRING, text STRING", retries=3, backoff="100ms..1s")


@app.worker(mails, concurrency=4, timeout="10s", into=sent)
def deliver(mail: dict[str, Any]) -> dict[str, Any]:
    """Stands in for a mail server: it is slow, fails now and then, and refuses what is not an address."""
    if "@" not in mail["address"]:
        raise ValueError(f"{mail['address']} is not an address")
    time.sleep(random.uniform(0.005, 0.03))
    if random.random() < 0.05:
        raise ConnectionError("the mail server hung up")
    return {"address": mail["address"]}
