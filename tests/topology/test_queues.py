"""Queues and workers as declarations: what is read from them, their problems, and how they are drawn."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InputError
from headrace.topology import App, Backoff, Duration, as_mermaid, as_text


def problems(app: App) -> list[str]:
    return [str(problem) for problem in app.problems()]


def test_a_queue_and_its_worker_are_plain_values() -> None:
    app = App("shop")
    results = app.topic("results", "order STRING")
    jobs = app.queue("jobs", "order STRING", key="order", retries=3, backoff="1s..1m")

    @app.worker(jobs, concurrency=16, timeout="30s", into=results)
    def pack(job, message):  # type: ignore[no-untyped-def]
        return job | {"by": message}

    topology = app.topology()
    assert topology.workers == (pack,)
    assert topology.queues == (jobs,)
    assert topology.queries == ()
    assert (jobs.retries, str(jobs.backoff), jobs.dead) == (3, "1 second..1 minute", "jobs.dead")
    assert (pack.group, pack.retry_topic) == ("shop.pack", "jobs.retry.shop.pack")
    assert (pack.concurrency, pack.timeout, pack.takes_message) == (16, Duration.of("30 seconds"), True)
    assert pack({"order": "1"}, message=2) == {"order": "1", "by": 2}


def test_streams_may_read_the_queue_and_topics_start_with_the_prefix() -> None:
    app = App("shop", prefix="eu-")
    jobs = app.queue("jobs", "order STRING")

    @app.worker(jobs)
    async def pack(job):  # type: ignore[no-untyped-def]
        return None

    @app.stream
    def audit(jobs):  # type: ignore[no-untyped-def]
        return jobs

    topology = app.topology()
    assert [query.name for query in topology.queries] == ["audit"]
    assert topology.feeds(audit) == (jobs,)
    assert (jobs.topic_name, jobs.dead) == ("eu-jobs", "eu-jobs.dead")
    assert pack.is_async


def test_they_are_drawn() -> None:
    app = App("shop")
    results = app.topic("results", "order STRING")
    jobs = app.queue("jobs", "order STRING", retries=1, backoff="5 seconds")

    @app.worker(jobs, concurrency=2, into=results)
    def pack(job):  # type: ignore[no-untyped-def]
        return job

    assert as_text(app.topology()) == (
        "shop\n\n"
        "results  topic\n\n"
        "jobs  queue · 1 retry, back-off 5 seconds · dead letters to jobs.dead\n"
        "└─▶ pack  worker · concurrency 2 · timeout 30 seconds · into results\n"
    )
    mermaid = as_mermaid(app.topology())
    assert 'node_pack(["pack' in mermaid
    assert "node_jobs --> node_pack" in mermaid
    assert "node_pack -.-> node_results" in mermaid


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"retries": -1}, "retries: -1 is not a number of retries"),
        ({"retries": True}, "retries: True is not a number of retries"),
        ({"backoff": "1m..1s"}, "backoff: '1m..1s' ends before it begins"),
        ({"backoff": "soon"}, "backoff: 'soon' is not a duration"),
        ({"dead": "jobs"}, "dead letters cannot go to the queue itself"),
        ({"dead": "no name"}, "'no name' cannot be a topic's name"),
        ({"key": "nope"}, "key 'nope' is not a column"),
    ],
)
def test_what_is_wrong_with_a_queue_is_told_with_its_line(options: dict[str, object], problem: str) -> None:
    app = App("shop")
    app.queue("jobs", "order STRING", **options)  # type: ignore[arg-type]
    (found,) = problems(app)
    assert problem in found
    assert "test_queues.py:" in found


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"concurrency": 0}, "concurrency: 0 is not a number of messages"),
        ({"timeout": "1 millisecond"}, "timeout: 1 millisecond is too short"),
        ({"order_by": "kye"}, "order_by: 'kye' is unknown"),
        ({"order_by": "key"}, "order_by: the queue 'jobs' has no key"),
        ({"into": "results"}, "into: results is not a topic that can be written"),
    ],
)
def test_what_is_wrong_with_a_worker_is_told_with_its_line(options: dict[str, object], problem: str) -> None:
    app = App("shop")
    jobs = app.queue("jobs", "order STRING")

    @app.worker(jobs, **options)  # type: ignore[arg-type]
    def pack(job):  # type: ignore[no-untyped-def]
        return None

    (found,) = problems(app)
    assert problem in found
    assert "test_queues.py:" in found


def test_a_function_that_takes_no_row_or_yields_is_refused() -> None:
    app = App("shop")
    jobs = app.queue("jobs", "order STRING")

    @app.worker(jobs)
    def nothing():  # type: ignore[no-untyped-def]
        return None

    @app.worker(jobs)
    def many(*rows):  # type: ignore[no-untyped-def]
        return None

    @app.worker(jobs)
    def several(row):  # type: ignore[no-untyped-def]
        yield row

    assert [found.partition("worker ")[2].partition(";")[0] for found in problems(app)] == [
        "'nothing': its function takes one row of the queue",
        "'many': its function takes one row of the queue",
        "'several': a worker's function returns at most one row",
    ]


def test_a_worker_of_a_topic_is_refused_at_once_and_a_stream_cannot_read_a_worker() -> None:
    app = App("shop")
    orders = app.topic("orders", "order STRING")
    with pytest.raises(InputError, match="the topic orders is not one"):

        @app.worker(orders)  # type: ignore[arg-type]
        def pack(row):  # type: ignore[no-untyped-def]
            return None

    jobs = app.queue("jobs", "order STRING")

    @app.worker(jobs)
    def ship(row):  # type: ignore[no-untyped-def]
        return None

    @app.stream
    def shipped(ship):  # type: ignore[no-untyped-def]
        return ship

    (found,) = problems(app)
    assert "the worker 'ship' is not a stream; add into= to 'ship'" in found


@given(st.integers(0, 100), st.integers(1, 10**9), st.integers(1, 10**9))
def test_a_pause_grows_and_stays_within_the_back_off(failures: int, one: int, other: int) -> None:
    backoff = Backoff(Duration(min(one, other)), Duration(max(one, other)))
    pause = backoff.pause(failures)
    assert backoff.first <= pause <= backoff.longest
    assert pause <= backoff.pause(failures + 1)


def test_a_pause_doubles() -> None:
    backoff = Backoff.of("1s..10s")
    assert [backoff.pause(n).timedelta / timedelta(seconds=1) for n in range(1, 7)] == [1, 2, 4, 8, 10, 10]
