"""The Spark session of an app, with settings for fast small batches and durable state."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.config.java import find_java
from headrace.engine.run.jars import Progress, connector_jars
from headrace.engine.run.spark_log import spark_log
from headrace.engine.spark_private.local_files import set_permissions_without_a_process
from headrace.engine.spark_private.process import (
    CHECKPOINT_FILE_MANAGER,
    IN_MEMORY_STATE,
    ROCKSDB_STATE,
    WORKER_DAEMON,
    silence_loggers,
)
from headrace.errors import EngineError
from headrace.topology import StateStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LOCAL", "is_local", "runs_here", "session_settings", "start_session"]

LOCAL = "local[*,4]"
"""All cores, and four attempts of a task: `local[*]` never retries."""
DEFAULT_PARTITIONS = 2
LATE_C2 = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000 "
    "-XX:Tier4BackEdgeThreshold=400000"
)
"""Java's second compiler starts ten times later: in the first minutes it would take a core from the batches."""
STATE_STORES = {StateStore.ROCKSDB: ROCKSDB_STATE, StateStore.MEMORY: IN_MEMORY_STATE}


def is_local(master: str) -> bool:
    return master.startswith("local")


def runs_here(spark: "SparkSession") -> bool:
    """Whether its tasks run on the driver's machine, not on a cluster."""
    return is_local(spark.sparkContext.master or LOCAL)


def session_settings(
    *, master: str, state: StateStore, partitions: int, home: Path, jars: list[Path]
) -> dict[str, str]:
    """The Spark settings of Headrace; the user's own settings override them."""
    settings = {
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # The oldest batch first. Fair pools give a free core to the first idle pool by name: with more nodes than
        # cores, those at the end of the alphabet would hardly ever run.
        "spark.scheduler.mode": "FIFO",
        "spark.pyspark.python": sys.executable,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        # The number is part of a checkpoint: state is stored by partition.
        "spark.sql.shuffle.partitions": str(partitions),
        # The default starts a process for each of the about 20 files of a batch.
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILE_MANAGER,
        "spark.sql.streaming.stateStore.providerClass": STATE_STORES[state],
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.pollingDelay": "20ms",
        "spark.python.unix.domain.socket.enabled": "true",
        # Of compiled classes. Six nodes need some 400: with Spark's 100, each batch compiles what another displaced.
        "spark.sql.codegen.cache.maxEntries": "1000",
        # A second attempt of a slow task must not compete with a node's transaction.
        "spark.speculation": "false",
    }
    if is_local(master):
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": str(home / "spark"),
            "spark.driver.memory": "2g",
            "spark.driver.defaultJavaOptions": LATE_C2,
            "spark.python.daemon.module": WORKER_DAEMON,
        }
    return settings


def start_session(
    name: str,
    *,
    home: Path,
    master: str = LOCAL,
    state: StateStore = StateStore.ROCKSDB,
    partitions: int = DEFAULT_PARTITIONS,
    settings: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> "SparkSession":
    """Start Spark, or join the cluster at `master`. Jars that are missing are fetched first.

    What Java and Spark's Python workers print goes to `logs/spark.log` of the home folder.
    """
    find_java().use()
    import pyspark
    from pyspark.sql import SparkSession

    from headrace.engine.run.failures import cause_of
    from headrace.engine.spark_private.worker_python import quick_python

    jars = connector_jars(pyspark.__version__, progress)
    home = home.absolute()
    wanted = session_settings(master=master, state=state, partitions=partitions, home=home, jars=jars)
    wanted |= settings or {}
    # In local mode Spark takes the Python of tasks from the environment, not from the setting.
    os.environ["PYSPARK_PYTHON"] = wanted["spark.pyspark.python"]
    if is_local(master):
        if wanted["spark.pyspark.python"] == sys.executable:
            os.environ["PYSPARK_PYTHON"] = quick_python()
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        (home / "spark").mkdir(parents=True, exist_ok=True)
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in wanted.items():
        builder = builder.config(key, value)
    if SparkSession.getActiveSession() is not None:
        raise EngineError("this process already has a Spark session", next_step="stop it first: an app needs its own")
    try:
        with spark_log(home):
            session = builder.getOrCreate()
    except Exception as error:
        raise EngineError(f"Spark did not start at {master}: {cause_of(error)}", next_step=_advice(master)) from error
    session.sparkContext.setLogLevel("ERROR")
    silence_loggers()
    if is_local(master):
        set_permissions_without_a_process(session)
    return session


def _advice(master: str) -> str:
    if is_local(master):
        return "check that Java runs, and that the home folder is writable and has free space"
    return f"check that the master listens at {master} and that its workers can reach this machine"
