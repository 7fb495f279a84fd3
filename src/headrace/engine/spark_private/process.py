"""The Java process of Spark, the gateway to it, and what they log."""

import logging
from pathlib import Path
from subprocess import Popen
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "CHECKPOINT_FILE_MANAGER",
    "IN_MEMORY_STATE",
    "ROCKSDB_STATE",
    "WORKER_DAEMON",
    "has_spark_context",
    "java_process",
    "send_by_value",
    "silence_loggers",
]

CHECKPOINT_FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""Writes the files of a checkpoint without a process for each."""
ROCKSDB_STATE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
WORKER_DAEMON = "headrace.engine.spark_private.worker_daemon"
"""What starts Spark's Python workers, in local mode: on a cluster, Headrace need not be installed where they start."""
IN_MEMORY_STATE = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
QUERY_CONTEXT_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")


def java_process(spark: "SparkSession") -> "Popen[bytes] | None":
    """The Java process of a session; None if another process started it."""
    return getattr(spark.sparkContext._gateway, "proc", None)


def has_spark_context() -> bool:
    """Whether this process has started Spark and has not stopped it, in whatever thread."""
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None


def send_by_value(module: ModuleType) -> None:
    """Send the functions of a module to Spark's Python processes by value: they need not be able to import it."""
    from pyspark.cloudpickle import register_pickle_by_value

    register_pickle_by_value(module)


def silence_loggers() -> None:
    """Do not print what PySpark and Py4J log of errors that they raise: whoever catches the error reports it."""
    # PySpark prints a page of JSON for every error.
    for logger in QUERY_CONTEXT_LOGGERS:
        logging.getLogger(logger).setLevel(logging.CRITICAL + 1)
    # So does Py4J, through the root logger, when the Java process has ended.
    logging.getLogger().addFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"
