"""`headrace check` and `graph`, and the mistakes `run` tells of before it starts anything."""

import json

import pytest

from tests.conftest import Headrace

GOOD = """
import headrace as hr

app = hr.App("fraud")
payments = app.topic("payments", "id STRING, card STRING, amount DECIMAL(12,2), at TIMESTAMP", key="card")


@app.stream(key="card")
def large(payments):
    return payments.filter("amount > 100")


@app.view(key="card")
def last(large):
    return large.select("card", "amount")
"""
BAD = """
import headrace as hr

app = hr.App("fraud")
payments = app.topic("payments", "id STRIN", key="card")


@app.stream(key="card", guarantee="exactly-twice")
def large(paymnts):
    return paymnts
"""


@pytest.fixture
def good(headrace_alone: Headrace) -> Headrace:
    (headrace_alone.folder / "fraud.py").write_text(GOOD)
    return headrace_alone


def test_an_app_whose_declarations_hold(good: Headrace) -> None:
    assert good.ok("check", "fraud.py") == (
        "fraud: no problems found in the declarations of 2 nodes; "
        "check the functions too: headrace check fraud.py --plan\n"
    )
    assert json.loads(good.ok("check", "fraud.py", "--json")) == {"ok": True, "problems": [], "columns": {}}
    assert [path.name for path in good.folder.iterdir()] == ["fraud.py"]


def test_every_problem_is_a_line_with_file_and_line(headrace_alone: Headrace) -> None:
    (headrace_alone.folder / "fraud.py").write_text(BAD)
    for command in ("check", "graph", "run"):
        done = headrace_alone(command, "fraud.py")
        assert (done.returncode, done.stdout) == (1, "")
        lines = done.stderr.splitlines()
        assert lines[-1] == f"headrace: {len(lines) - 1} problems found"
        assert [line.partition(": ")[0] for line in lines[:-1]] == ["fraud.py:5", "fraud.py:8", "fraud.py:8"]
        assert "did you mean 'payments'?" in done.stderr
        assert "did you mean 'STRING'?" in done.stderr or "STRIN" in done.stderr
    report = headrace_alone("check", "fraud.py", "--json")
    assert report.returncode == 1
    assert len(json.loads(report.stdout)["problems"]) == 3
    assert not (headrace_alone.folder / ".headrace").exists()


@pytest.mark.parametrize(
    "needs_spark", ['@F.udf("int")\ndef twice(n):\n    return 2 * n', 'LARGE = F.col("amount") > 100']
)
def test_what_needs_spark_while_the_file_is_loaded(good: Headrace, needs_spark: str) -> None:
    """A process of its own: where a test has started Spark, nothing is missing."""
    (good.folder / "fraud.py").write_text(f"from pyspark.sql import functions as F\n{needs_spark}\n{GOOD}")
    complaint = good("check", "fraud.py").stderr.splitlines()[0]
    assert complaint.startswith("fraud.py:2: the file cannot be loaded: ")
    assert complaint.endswith("give a UDF its type as a class, such as IntegerType(), or do this inside the function")


def test_the_drawing_in_the_terminal_and_as_mermaid(good: Headrace) -> None:
    text = good.ok("graph", "fraud.py")
    assert "└─▶ large  stream" in text
    assert "table fraud.last" in text
    mermaid = good.ok("graph", "fraud.py", "--mermaid")
    assert mermaid.startswith("flowchart LR\n")
    assert "node_payments --> node_large" in mermaid


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["check", "nowhere.py"], "nowhere.py: the file does not exist"),
        (["check", "fraud.py", "--app", "frau"], "did you mean 'fraud'?"),
        (["run", "fraud.py", "--reset", "larg"], "did you mean 'large'?"),
        (["run", "fraud.py", "--reset", "payments"], "is a topic, which has no checkpoint"),
        (["run", "fraud.py", "--replay", "large"], "'large' is not a replay; write NODE:TOPIC=TIME"),
        (["run", "fraud.py", "--replay", "large:payments=noon"], "'noon' is not a time"),
        (["run", "fraud.py", "--replay", "larg:payments=2026-01-01"], "did you mean 'large'?"),
        (["run", "fraud.py", "--reset", "large", "--replay", "large=2026-01-01"], "both reset and replayed"),
        (["run", "fraud.py", "--config", "nowhere.toml"], "nowhere.toml cannot be read"),
        (["run", "fraud.py", "--postgres", "postgresql://127.0.0.1:1/x"], "no Kafka answers at 127.0.0.1:1"),
    ],
)
def test_mistakes_that_need_no_spark_to_be_found(good: Headrace, words: list[str], complaint: str) -> None:
    done = good(*words)
    assert done.returncode == 1
    assert complaint in done.stderr
    assert done.stderr.splitlines()[-1].startswith("headrace: ")


@pytest.mark.parametrize(
    ("postgres", "complaint"),
    [
        ("mysql://x", "the address in --postgres is invalid"),
        ("postgresql://127.0.0.1:1/x", "127.0.0.1:1/x is unavailable"),
    ],
)
def test_a_postgresql_that_is_none(headrace: Headrace, postgres: str, complaint: str) -> None:
    (headrace.folder / "fraud.py").write_text(GOOD)
    assert complaint in headrace.fails("run", "fraud.py", "--postgres", postgres)


def test_a_home_that_cannot_be_used_is_told(good: Headrace) -> None:
    (good.folder / "file").write_text("")
    assert "choose one with --home" in good.fails("run", "fraud.py", "--home", "file/home")


def test_an_app_that_runs_already_is_not_run_twice(good: Headrace) -> None:
    from headrace.services import Home

    with Home(good.folder / ".headrace").running("fraud"):
        assert "'fraud' is running already" in good.fails("run", "fraud.py")


def test_a_file_of_settings_is_read(headrace: Headrace) -> None:
    (headrace.folder / "fraud.py").write_text(GOOD)
    (headrace.folder / "headrace.toml").write_text('postgres = "postgresql://127.0.0.1:1/x"\n')
    assert "127.0.0.1:1/x is unavailable" in headrace.fails("run", "fraud.py")
    (headrace.folder / "headrace.toml").write_text('postgre = "x"\n')
    assert "did you mean 'postgres'?" in headrace.fails("run", "fraud.py")


PLAN = """
import headrace as hr

app = hr.App("fraud")
payments = app.topic("payments", "card STRING, amount DECIMAL(12,2)", key="card")


@app.stream(key="card")
def large(payments):
    return payments.filter("amont > 100")


@app.view(key="id")
def last(payments):
    return payments
"""


@pytest.mark.timeout(300)
def test_spark_finds_what_is_wrong_inside_the_functions(good: Headrace) -> None:
    (good.folder / "wrong.py").write_text(PLAN)
    done = good("check", "wrong.py", "--plan", limit=250)
    assert (done.returncode, done.stdout) == (1, "")
    # Lines about fetching jars and starting Spark come first.
    large, last, summary = done.stderr.splitlines()[-3:]
    assert large.startswith("wrong.py:10: stream 'large': ")
    assert "amont" in large
    assert last.startswith("wrong.py:13: view 'last': ")
    assert "'id'" in last
    assert summary == "headrace: 2 problems found"


@pytest.mark.timeout(300)
def test_spark_tells_the_columns_of_every_node(good: Headrace) -> None:
    done = good("check", "fraud.py", "--plan", limit=250)
    assert done.stdout.splitlines() == [
        "NODE   COLUMNS",
        "large  id STRING, card STRING, amount DECIMAL(12,2), at TIMESTAMP",
        "last   card STRING, amount DECIMAL(12,2)",
        "fraud: no problems found in the declarations and functions of 2 nodes",
    ]
    assert done.stderr.splitlines()[-2:] == ["starting Spark", "analysing large, last"]
    assert [path.name for path in good.folder.iterdir()] == ["fraud.py"]


WINDOWS = """
import headrace as hr

app = hr.App("fraud")
payments = app.topic(
    "payments", "id STRING, card STRING, at TIMESTAMP", key="card", event_time="at", lateness="1 minute"
)


@app.stream(key="card")
def copied(payments):
    return payments


@app.stream(key="card")
def minutes(payments):
    return hr.windowed(payments, hr.tumbling("1 minute")).agg(n=hr.count())


@app.stream(key="card")
def bursts(payments):
    return hr.windowed(payments, hr.sliding("5 minutes"), late="divert").agg(n=hr.count())


@app.stream(key="card")
def seen(payments):
    return payments.dropDuplicates(["id"])
"""


@pytest.mark.timeout(300)
def test_the_graph_says_who_computes_what_and_why(headrace_alone: Headrace) -> None:
    (headrace_alone.folder / "fraud.py").write_text(WINDOWS)
    done = headrace_alone("graph", "fraud.py", "--explain", limit=250)
    assert done.stdout.splitlines()[-5:] == [
        "NODE     COMPUTED BY",
        "copied   Spark: row by row, without state",
        "minutes  tumbling 1 minute by card: Spark's own window",
        "bursts   sliding 5 minutes by card: Headrace's operator: Spark has no windows per event",
        "seen     Spark: Deduplicate",
    ]
