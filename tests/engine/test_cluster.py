"""The antifraud example and its demo, unchanged, on a real Apache Kafka and a real Spark cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyspark
import pytest

from headrace.tables import EmbeddedPostgres
from headrace.topology import Topic, load_app
from tests.conftest import COMMAND
from tests.examples.conftest import EXAMPLES
from tests.peers import ApacheKafka, free_port

SETTINGS = """
[spark_settings]
"spark.executor.memory" = "512m"
"spark.driver.host" = "127.0.0.1"
"spark.driver.bindAddress" = "127.0.0.1"
"""


@contextmanager
def spark_cluster(folder: Path) -> Iterator[str]:
    """A master and two workers of one core each, out of PySpark's wheel; gives the master's address."""
    folder.mkdir()
    port, web = free_port(), free_port()
    address = f"spark://127.0.0.1:{port}"
    here = ["--host", "127.0.0.1", "--webui-port"]
    size = ["--cores", "1", "--memory", "1g"]
    commands = [
        ["master.Master", *here, str(web), "--port", str(port)],
        *(["worker.Worker", *here, str(free_port()), *size, "--work-dir", str(folder / n), address] for n in "12"),
    ]
    home = Path(pyspark.__file__).parent
    # Its Python has nothing of Headrace's on its path: that goes along with the job.
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    bare |= {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
    started = []
    try:
        with (folder / "log").open("wb") as log:
            for role, *words in commands:
                command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}", *words]
                started.append(subprocess.Popen(command, env=bare, stdout=log, stderr=log))
        deadline = time.monotonic() + 240
        while workers_of(web) < 2:
            assert time.monotonic() < deadline, (folder / "log").read_text()[-4000:]
            time.sleep(0.5)
        yield address
    finally:
        for process in started:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
            process.wait(60)


def workers_of(web: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{web}/json/", timeout=5) as answer:
            return int(json.load(answer)["aliveworkers"])
    except OSError:
        return 0


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_antifraud_runs_unchanged_on_apache_kafka_and_a_spark_cluster(tmp_path: Path) -> None:
    postgres = EmbeddedPostgres(tmp_path / "postgres")
    (tmp_path / "headrace.toml").write_text(SETTINGS)
    inputs = [
        node for node in load_app(str(EXAMPLES / "fraud.py")).topology().nodes.values() if isinstance(node, Topic)
    ]
    with ApacheKafka(tmp_path / "kafka", heap="256M") as kafka, spark_cluster(tmp_path / "spark") as master:
        try:
            for node in inputs:  # on a cluster of others, an app makes only the topics that it writes
                create = [COMMAND, "topics", "create", node.topic_name, "--partitions", "2", "--kafka", kafka.address]
                assert subprocess.run(create, capture_output=True, check=False).returncode == 0
            where = {"KAFKA": kafka.address, "SPARK": master, "POSTGRES": postgres.start()}
            done = subprocess.run(
                [sys.executable, str(EXAMPLES / "fraud_demo.py"), "--seconds", "25"],
                cwd=tmp_path,
                env={**os.environ, **{f"HEADRACE_{name}": value for name, value in where.items()}},
                capture_output=True,
                text=True,
                timeout=900,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            assert f"Kafka is at {kafka.address}" in done.stdout
            assert "payments are accounted for, and every total is right." in done.stdout
            applications = [path for number in "12" for path in (tmp_path / "spark" / number).glob("app-*")]
            assert len(applications) == 2, "both workers had an executor of it"
        finally:
            postgres.stop()
