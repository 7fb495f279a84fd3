"""One way to start an app, and what a running one tells of itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headrace as hr

if TYPE_CHECKING:
    from headrace.testing import Environment

pytestmark = pytest.mark.timeout(300)


def test_a_wrong_address_is_told_before_spark_starts(tmp_path: Path) -> None:
    app = hr.App("shop")
    app.topic("orders", "id STRING")

    @app.stream
    def same(orders: Any) -> Any:
        return orders

    with (
        pytest.raises(hr.Unreachable, match=r"no Kafka answers at 127.0.0.1:1 .*kafka="),
        app.running(home=tmp_path, kafka="127.0.0.1:1"),
    ):
        pass


def test_a_running_app_shows_its_topology_schemas_checkpoints_and_settings(
    headrace_environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.config.run import RunConfig
    from headrace.services import Addresses, children
    from headrace.services.launching import launch, processes_of
    from headrace.supervised import Child, ProcessState
    from headrace.threads import Threads

    app = hr.App("shown")
    app.topic("orders", "id STRING, cents INT", topic="shown-orders")

    @app.stream(key="id", topic="shown-paid")
    def paid(orders: Any) -> Any:
        return orders.selectExpr("id", "cents / 100.0 AS price")

    addresses = headrace_environment.addresses(postgres=False)
    config = RunConfig(
        home=tmp_path, kafka=addresses.kafka, create_inputs=True, kafka_settings={"sasl.password": "hunter2"}
    )
    spark = headrace_environment.spark.newSession()
    task = {"word": "here", "file": str(tmp_path / "finished")}
    beside = Child("test works", "tests.supervised_children:works", task)
    monkeypatch.setattr(children, "KINDS", [lambda topology, _: [beside] * (topology.app_name == "shown")])
    threads = Threads()
    processes = processes_of(config, threads)
    launched = launch(app, config, lambda _: Addresses(None, None), spark=spark, threads=threads, processes=processes)
    with launched as runner:
        running = hr.Running(runner, processes)
        assert [query.name for query in running.topology.queries] == ["paid"]
        assert running.output_schemas["paid"].names == ("id", "price") or running.output_schemas["paid"].names == [
            "id",
            "price",
        ]
        assert running.checkpoints["paid"].is_dir()
        assert running.settings["kafka_settings"] == {"sasl.password": "***"}
        assert running.kafka == addresses.kafka
        running.settle()
        (process,) = running.processes()
        assert (process.name, process.state, process.figures["word"]) == ("test works", ProcessState.RUNNING, "here")
