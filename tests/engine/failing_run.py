"""An app whose function raises on some rows, as a process that can be struck at named places."""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql import functions as F
from pyspark.sql.types import LongType

import headrace as hr
from tests.engine.numbers_run import main

app = hr.App("failing")
numbers = app.topic("numbers", "n BIGINT, k STRING, at TIMESTAMP", key="k", event_time="at", lateness="1 minute")


@app.stream(key="k", on_error="divert")
def divided(numbers: Any) -> Any:
    return numbers.withColumn("n", F.udf(lambda n: n // (n % 10 != 3), LongType())("n"))


if __name__ == "__main__":
    sys.exit(main(app))
