"""The name somebody probably meant, where `headrace` has none of that name."""

from collections.abc import Iterable

__all__ = ["NEAR", "OF_APP", "suggestion"]

# What Spark, SQL, pandas and other stream processors call them.
NEAR = {
    "avg": "mean",
    "average": "mean",
    "total": "sum",
    "size": "count",
    "countDistinct": "count_distinct",
    "approx_count_distinct": "count_distinct",
    "nunique": "count_distinct",
    "collect_list": "collect",
    "array_agg": "collect",
    "earliest": "first",
    "latest": "last",
    "window": "windowed",
    "tumble": "tumbling",
    "hop": "hopping",
    "slide": "sliding",
    "session_window": "session",
    "deduplicate": "dedup",
    "distinct": "dedup",
    "drop_duplicates": "dedup",
    "dropDuplicates": "dedup",
    "union": "merge",
    "concat": "merge",
    "lookup": "enrich",
    "now": "processing_time",
}
OF_APP = ("topic", "table", "files", "rate", "stream", "view", "step", "producer", "consumer", "read", "running")
OF_SPARK = ("col", "lit", "expr", "udf", "when", "desc", "asc")


def suggestion(package: str, name: str, known: Iterable[str]) -> str:
    """The end of an error message; empty if nothing is close."""
    if name.startswith("_"):
        return ""
    if name in NEAR:
        return f"; did you mean {package}.{NEAR[name]}?"
    if name in OF_APP:
        return f'; it is a method of an app: app = {package}.App("name"), then app.{name}(...)'
    if name in OF_SPARK:
        return f"; it is Spark's: from pyspark.sql import functions as F, then F.{name}(...)"
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=1)
    return f"; did you mean {package}.{near[0]}?" if near else ""
