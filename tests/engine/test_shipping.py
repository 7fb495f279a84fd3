"""The user's code where Spark runs Python, on this machine and on a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from headrace.engine.plan.shipping import _imported_packages, pack_users_code
from headrace.topology import load_app
from tests.peers import free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APP = """
    import json
    import os.path
    import headrace.topology as hr
    import not_on_any_worker_x
    from helper_of_the_app import shout
    from pyspark.sql import functions as F

    app = hr.App("travels")
    app.rate("ticks")

    def loud(text):
        return shout(text) + json.dumps(1)

    @app.stream
    def loudly(ticks):
        return ticks.select(F.udf(loud)(F.col("value").cast("string")).alias("said"))
"""


@pytest.fixture
def app_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An app in a folder that no Python process has on its path, but this one."""
    folder, elsewhere = tmp_path / "app", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (folder / "helper_of_the_app.py").write_text("def shout(text):\n    return text.upper() + '!'\n")
    (elsewhere / "not_on_any_worker_x.py").write_text("")
    file = folder / "travelling_app.py"
    file.write_text(textwrap.dedent(APP))
    for path in (folder, elsewhere):
        monkeypatch.syspath_prepend(str(path))
    for module in ("helper_of_the_app", "not_on_any_worker_x"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return file


def test_functions_of_the_users_file_run_in_workers_that_cannot_import_it(spark: SparkSession, app_file: Path) -> None:
    topology = load_app(str(app_file)).topology()
    pack_users_code(topology)
    rows = spark.createDataFrame([("a",)], "value STRING")
    assert [row.said for row in topology.nodes["loudly"](rows).collect()] == ["A!1"]  # type: ignore[operator]


def test_packages_that_an_app_imports_are_known_without_the_users_own(app_file: Path) -> None:
    assert _imported_packages(load_app(str(app_file)).topology()) == ["not_on_any_worker_x"]


# ---- a cluster of one master and one worker

RUN = """
    import sys
    from pathlib import Path
    from headrace.engine.run.session import start_session
    from headrace.engine.plan.shipping import check_packages, pack_users_code, send_headrace
    from headrace.errors import EngineError
    from headrace.topology import load_app

    master, home, file, elsewhere = sys.argv[1:]
    sys.path[:0] = [str(Path(file).parent), elsewhere]
    settings = {
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.executor.memory": "512m",
    }
    session = start_session("travels", home=Path(home), master=master, settings=settings)
    topology = load_app(file).topology()
    send_headrace(session)
    pack_users_code(topology)
    try:
        check_packages(session, topology)
    except EngineError as error:
        print("REFUSED", error)
    print("SAID", topology.nodes["loudly"](session.createDataFrame([("a",)], "value STRING")).collect()[0].said)
    where = session.sparkContext.parallelize([0]).map(lambda _: __import__("headrace").__file__).collect()
    print("HEADRACE", where[0])
    session.stop()
"""


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[str]:
    """A master and a worker, whose Python has PySpark on its path and nothing of Headrace's."""
    home = Path(pyspark.__file__).parent
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = {**bare, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
    port, web = free_port(), free_port()
    address = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    commands = [
        [f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(web)],
        [f"{deploy}.worker.Worker", "--host", "127.0.0.1", "--webui-port", str(free_port()), "--cores", "1",
         "--memory", "1g", "--work-dir", str(tmp_path / "work"), address],
    ]  # fmt: skip
    with ExitStack() as stack, (tmp_path / "cluster.log").open("wb") as log:
        for command in commands:
            process = subprocess.Popen(
                [str(home / "bin" / "spark-class"), *command], env=environment, stdout=log, stderr=log
            )
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)
        deadline = time.monotonic() + 120
        while True:
            assert time.monotonic() < deadline, (tmp_path / "cluster.log").read_text()[-2000:]
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{web}/json/", timeout=5) as answer:
                    if json.load(answer)["aliveworkers"] == 1:
                        break
            except OSError:
                pass
            time.sleep(0.5)
        yield address


@pytest.mark.long
@pytest.mark.timeout(600)
def test_on_a_cluster_headrace_and_the_users_file_go_along_and_missing_packages_are_named(
    standalone: str, app_file: Path, tmp_path: Path
) -> None:
    script = tmp_path / "run.py"
    script.write_text(textwrap.dedent(RUN))
    elsewhere = str(tmp_path / "elsewhere")
    arguments = [standalone, str(tmp_path / "home"), str(app_file), elsewhere]
    done = subprocess.run(
        [sys.executable, str(script), *arguments], capture_output=True, text=True, timeout=400, check=False
    )
    lines = {line.partition(" ")[0]: line for line in done.stdout.splitlines()}
    assert done.returncode == 0, done.stderr[-3000:]
    assert "packages are missing on the workers" in lines["REFUSED"]
    assert "not_on_any_worker_x; install them there" in lines["REFUSED"]
    assert lines["SAID"] == "SAID A!1"
    assert "headrace-" in lines["HEADRACE"]
