"""The private parts of Spark and PySpark that Headrace depends on, with the real thing: a test for each.

Run this first with a new PySpark: the name of a test that fails says which private part has changed.
"""

from __future__ import annotations

import ast
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import DecimalType, StringType, StructField, StructType, TimestampType

import headrace
from headrace.engine.plan.analysis import REAL_TIME_PREFIX
from headrace.engine.spark_private import process
from headrace.engine.spark_private.checkpoint_files import (
    CheckpointFiles,
    SourceOffsets,
    files_of_batch,
    lists_files_of,
    new_metadata,
)
from headrace.engine.spark_private.local_files import LOCAL_FILE_SYSTEM, set_permissions_without_a_process
from headrace.engine.spark_private.plans import (
    WATERMARK_DELAY,
    ClassicDataFrame,
    PlanNode,
    error_in_output_mode,
    error_in_real_time_mode,
    is_read_by_spark_of_a_dataframe,
    plan_of,
    with_the_plan_of,
)
from headrace.engine.spark_private.reports import (
    GROUP_COUNTING_OPERATORS,
    PYTHON_STATE_OPERATOR,
    Py4JError,
    observed_number,
    reports_since,
)
from headrace.engine.spark_private.rows import collect_arrow_batches
from headrace.errors import CheckpointError
from headrace.operators.spark_private import arrow_schema, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

METRIC = "seen by the test"


@pytest.fixture
def numbers(spark: SparkSession) -> DataFrame:
    """A stream that is never started: `timestamp`, with a watermark, and `value`."""
    return spark.readStream.format("rate").load().withWatermark("timestamp", "7 seconds")


# Plans as Java objects.


def kinds(frame: DataFrame) -> list[str]:
    return [node.kind for node in plan_of(frame).walk()]


def node(frame: DataFrame, kind: str) -> PlanNode:
    return next(node for node in plan_of(frame).walk() if node.kind == kind)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("Project", lambda rows: rows.select("value")),
        ("Join", lambda rows: rows.join(rows.select(F.col("value").alias("other")), F.expr("value = other"))),
        ("Sort", lambda rows: rows.sort("value")),
        ("GlobalLimit", lambda rows: rows.limit(1)),
        ("LocalLimit", lambda rows: rows.limit(1)),
        (
            "Distinct",
            lambda rows: rows.sparkSession.sql("SELECT DISTINCT * FROM {rows}", rows=rows),
        ),
        ("Deduplicate", lambda rows: rows.dropDuplicates(["value"])),
        ("Intersect", lambda rows: rows.intersect(rows)),
        ("Except", lambda rows: rows.subtract(rows)),
        ("Repartition", lambda rows: rows.repartition(2)),
        ("RepartitionByExpression", lambda rows: rows.repartition("value")),
        ("RebalancePartitions", lambda rows: rows.hint("rebalance")),
        ("Generate", lambda rows: rows.select(F.explode(F.array("value")))),
        ("Window", lambda rows: rows.selectExpr("sum(value) OVER (PARTITION BY value) AS total")),
        ("CollectMetrics", lambda rows: rows.observe(METRIC, F.count("*"))),
        ("MapInArrow", lambda rows: rows.select("value").mapInArrow(lambda batches: batches, "value BIGINT")),
        ("TransformWithStateInPySpark", lambda rows: counted_in_python(rows)),
    ],
)
def test_the_names_of_the_classes_of_logical_plans(
    numbers: DataFrame, kind: str, change: Callable[[DataFrame], DataFrame]
) -> None:
    assert kind in kinds(change(numbers))


def test_children_and_streaming_of_logical_plans(spark: SparkSession, numbers: DataFrame) -> None:
    joined = plan_of(numbers.join(spark.range(3), F.expr("value = id")))
    assert [child.is_streaming for child in joined.children] == [True, False]
    assert joined.is_streaming


def test_the_output_and_the_project_list_of_logical_plans(numbers: DataFrame) -> None:
    plan = plan_of(numbers.selectExpr("value + 1 AS more", "timestamp"))
    below = plan.children[0].columns
    assert list(plan.columns.values()) == ["more", "timestamp"]
    assert [[below[one] for one in plan.columns_read[number]] for number in plan.columns] == [["value"], ["timestamp"]]


def test_the_expressions_of_logical_plans_as_sql_and_the_windows_in_them(numbers: DataFrame) -> None:
    plain = plan_of(numbers.where("value > 3"))
    assert plain.expressions == ["(value > CAST(3 AS BIGINT))"]
    assert plain.window_lengths == []
    windowed = numbers.groupBy(F.window("timestamp", "10 minutes", "5 minutes")).count()
    lengths = {length for one in plan_of(windowed).walk() for length in one.window_lengths}
    assert {"600000000L", "300000000L"} <= lengths


def test_unsupported_operation_checker_knows_stateful_operators(numbers: DataFrame) -> None:
    counted = numbers.groupBy(F.window("timestamp", "1 minute")).count()
    assert [one.kind for one in plan_of(counted).walk() if one.is_stateful] == ["Aggregate"]
    assert not any(one.is_stateful for one in plan_of(numbers.select("value")).walk())
    assert any(one.is_stateful for one in plan_of(counted_in_python(numbers)).walk())


def test_unsupported_operation_checker_refuses_an_output_mode(numbers: DataFrame) -> None:
    counted = numbers.groupBy("value").count()
    error = error_in_output_mode(counted, "append")
    assert isinstance(error, PySparkException)
    assert "watermark" in str(error)
    assert error_in_output_mode(counted, "update") is None


def test_unsupported_operation_checker_refuses_real_time_mode(numbers: DataFrame) -> None:
    error = error_in_real_time_mode(numbers, "append")
    assert isinstance(error, PySparkException)
    assert REAL_TIME_PREFIX in str(error)
    assert error_in_real_time_mode(numbers, "update") is None


def test_the_tree_pattern_of_a_python_udf(numbers: DataFrame) -> None:
    shouted = numbers.select(F.udf(lambda value: str(value))("value").alias("text"))
    assert plan_of(shouted).calls_python_udf
    above = plan_of(shouted.where("text <> ''"))
    assert above.contains_python_udf
    assert not above.calls_python_udf
    assert not plan_of(numbers).contains_python_udf


def test_the_name_of_an_observation(numbers: DataFrame) -> None:
    assert node(numbers.observe(METRIC, F.count("*")), "CollectMetrics").metric_name == METRIC


def test_the_mark_of_a_session_window(numbers: DataFrame) -> None:
    sessions = numbers.groupBy(F.session_window("timestamp", "1 minute")).count()
    assert any(one.has_session_window for one in plan_of(sessions).walk())
    assert not any(one.has_session_window for one in plan_of(numbers).walk())


def test_the_mark_of_a_watermark(numbers: DataFrame) -> None:
    assert [field.metadata.get(WATERMARK_DELAY) for field in numbers.schema] == [7000, None]


def test_the_options_of_sources_in_logical_plans(spark: SparkSession, broker_address: str, tmp_path: Path) -> None:
    options = {"kafka.bootstrap.servers": broker_address, "subscribe": "one"}
    (topic,) = plan_of(spark.readStream.format("kafka").options(**options).load()).walk()
    assert topic.reads_topic("one")
    assert not topic.reads_topic("other")
    assert not topic.reads_files("one")
    files = node(spark.readStream.format("text").load(str(tmp_path)), "StreamingRelation")
    assert files.reads_files(str(tmp_path))
    assert not files.reads_files("/other")
    assert not files.reads_topic("one")


def test_the_constructor_of_the_classic_dataframe(spark: SparkSession) -> None:
    class Own(ClassicDataFrame):
        pass

    own = with_the_plan_of(spark.range(3), Own)
    assert isinstance(own, Own)
    assert own.count() == 3


def test_the_attribute_that_spark_reads_of_a_dataframe_it_is_given(spark: SparkSession) -> None:
    class Asked(Exception):
        pass

    class Other:
        def __getattr__(self, name: str) -> Any:
            raise Asked if is_read_by_spark_of_a_dataframe(name) else AttributeError(name)

    for use in (spark.range(3).join, spark.range(3).union):
        with pytest.raises(Asked):
            use(Other())  # type: ignore[operator]


# Rows as Arrow batches.


def test_collect_as_arrow_and_load_from_socket(spark: SparkSession) -> None:
    taken: list[pa.RecordBatch] = []
    order = collect_arrow_batches(spark.range(0, 1000, 1, 4), taken.append)
    rows = pa.Table.from_batches([taken[index] for index in order])
    assert rows.column("id").to_pylist() == list(range(1000))


def test_collect_as_arrow_raises_the_error_of_spark(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="not today"):
        collect_arrow_batches(spark.range(3).selectExpr("raise_error('not today')"), lambda batch: None)


def test_the_conversion_of_schemas_to_arrow_and_back() -> None:
    schema = StructType(
        [
            StructField("name", StringType(), nullable=False),
            StructField("amount", DecimalType(12, 2)),
            StructField("at", TimestampType()),
        ]
    )
    arrow = arrow_schema(schema)
    assert arrow == pa.schema({"name": pa.string(), "amount": pa.decimal128(12, 2), "at": pa.timestamp("us", tz="UTC")})
    assert [field.dataType for field in spark_schema(arrow)] == [field.dataType for field in schema]


# A query that runs: its reports, its metrics and the files of its checkpoint.


@dataclass
class Ran:
    query: StreamingQuery
    files: CheckpointFiles
    topic: str
    folder: Path
    query_id: str
    observed: list[int | None] = field(default_factory=list)


def damaged(how: str) -> CheckpointError:
    return CheckpointError(how, next_step="none")


@pytest.fixture(scope="module")
def ran(spark: SparkSession, broker_address: str, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A query over a topic and a folder of files, a file in each batch, that counts by windows."""
    home = tmp_path_factory.mktemp("ran")
    folder = home / "files"
    folder.mkdir()
    for minute in (1, 10):
        (folder / f"{minute}.json").write_text(json.dumps({"at": f"2026-01-01T00:{minute:02}:00Z"}))
    topic = f"private-{home.name}"
    producer = Producer({"bootstrap.servers": broker_address})
    producer.produce(topic, b'{"at": "2026-01-01T00:02:00Z"}')
    assert producer.flush(30) == 0

    options = {"kafka.bootstrap.servers": broker_address, "subscribe": topic, "startingOffsets": "earliest"}
    records = spark.readStream.format("kafka").options(**options).load().select(F.col("value").cast("string"))
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(folder))
    times = records.union(lines).select(F.from_json("value", "at TIMESTAMP").at.alias("at"))
    seen = times.observe(METRIC, F.count("*").alias("n"))
    counted = seen.withWatermark("at", "1 minute").groupBy(F.window("at", "1 minute")).count()

    files = CheckpointFiles(home / "checkpoint", damaged)
    files.metadata.parent.mkdir()
    files.metadata.write_text(json.dumps(new_metadata()))
    known = threading.Event()
    observed: list[int | None] = []

    def write(batch: DataFrame, _: int) -> None:
        assert known.wait(60)
        batch.collect()
        observed.append(observed_number(found.query, METRIC))

    writer = counted.writeStream.foreachBatch(write).outputMode("update").trigger(availableNow=True)
    query_id = files.query_id
    query = writer.option("checkpointLocation", str(files.folder)).start()
    found = Ran(query, files, topic, folder, query_id, observed)
    known.set()
    assert query.awaitTermination(120)
    return found


def test_the_reports_of_a_query_and_their_ids(ran: Ran) -> None:
    reports, last = reports_since(ran.query, None)
    assert [report["batchId"] for report in reports][:2] == [0, 1]
    assert sum(report["numInputRows"] for report in reports) == 3
    assert reports_since(ran.query, last) == ([], last)
    first = (reports[0]["runId"], reports[0]["timestamp"])
    assert reports_since(ran.query, first) == (reports[1:], last)


def test_the_metrics_of_the_last_execution_inside_of_a_batch(ran: Ran) -> None:
    assert ran.observed[:2] == [2, 1]


def test_the_name_of_the_operator_of_aggregates_in_reports(ran: Ran) -> None:
    reports, _ = reports_since(ran.query, None)
    assert reports[0]["stateOperators"][0]["operatorName"] == GROUP_COUNTING_OPERATORS[0]


def test_the_id_in_the_metadata_of_a_checkpoint_is_the_one_that_spark_finds(ran: Ran) -> None:
    assert ran.query.id == ran.query_id == ran.files.query_id


def test_the_offsets_and_commits_of_a_checkpoint(ran: Ran) -> None:
    assert ran.files.has_batches
    last = ran.files.last_batch()
    assert last is not None
    assert last >= 1
    assert ran.files.committed_batch() == last
    ran.files.check()
    assert ran.files.watermark(0) is None
    assert ran.files.watermark(last) == datetime(2026, 1, 1, 0, 9, tzinfo=UTC)
    assert ran.files.watermark_after(0) == ran.files.watermark(1)
    assert ran.files.watermark_after(last) == datetime(2026, 1, 1, 0, 9, tzinfo=UTC)


def sources(ran: Ran, batch: int) -> tuple[SourceOffsets, SourceOffsets]:
    topic, files = ran.files.sources(batch)
    return topic, files


def test_the_offsets_of_a_topic_in_a_checkpoint_and_its_initial_ones(ran: Ran) -> None:
    topic, _ = sources(ran, 0)
    assert (topic.start, topic.end) == ({ran.topic: {"0": 0}}, {ran.topic: {"0": 1}})


def test_the_log_of_a_source_of_files_in_a_checkpoint(spark: SparkSession, ran: Ran) -> None:
    read = []
    for batch in (0, 1):
        topic, files = sources(ran, batch)
        assert lists_files_of(files, str(ran.folder))
        assert not lists_files_of(files, "/other")
        assert not lists_files_of(topic, str(ran.folder))
        read.append([Path(path).name for path in files_of_batch(spark, files)])
    assert sorted(read) == [["1.json"], ["10.json"]]


class CountInPython(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("n", "n BIGINT")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        count = sum(1 for _ in rows)
        self._count.update((count,))
        yield Row(n=count)

    def close(self) -> None:
        pass


def counted_in_python(rows: DataFrame) -> DataFrame:
    return rows.groupBy("value").transformWithState(CountInPython(), "n BIGINT", "append", "None")


def operators_of(frame: DataFrame, checkpoint: Path) -> list[str]:
    """The names of its stateful operators in the first report."""
    writer = frame.writeStream.format("noop").outputMode("append").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    assert query.awaitTermination(120)
    reports, _ = reports_since(query, None)
    return [operator["operatorName"] for operator in reports[0]["stateOperators"]]


@pytest.fixture
def lines(spark: SparkSession, tmp_path: Path) -> DataFrame:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "one.txt").write_text("2026-01-01T00:00:00Z\n")
    return spark.readStream.format("text").load(str(tmp_path / "files"))


def test_the_name_of_the_operator_of_sessions_in_reports(lines: DataFrame, tmp_path: Path) -> None:
    times = lines.select("value", F.col("value").cast("timestamp").alias("at")).withWatermark("at", "1 minute")
    sessions = times.groupBy(F.session_window("at", "1 minute"), "value").count()
    assert GROUP_COUNTING_OPERATORS[1] in operators_of(sessions, tmp_path / "checkpoint")


def test_the_name_of_the_operator_of_python_state_in_reports(lines: DataFrame, tmp_path: Path) -> None:
    assert PYTHON_STATE_OPERATOR in operators_of(counted_in_python(lines), tmp_path / "checkpoint")


# The Java process.


def test_the_process_of_the_gateway(spark: SparkSession) -> None:
    java = process.java_process(spark)
    assert java is not None
    assert java.poll() is None


def test_the_active_spark_context_in_another_thread(spark: SparkSession) -> None:
    found: list[bool] = []
    asking = threading.Thread(target=lambda: found.append(process.has_spark_context()))
    asking.start()
    asking.join(30)
    assert found == [True]


def test_the_cache_of_file_systems_and_the_permissions_of_local_files(spark: SparkSession, tmp_path: Path) -> None:
    set_permissions_without_a_process(spark)  # a second call changes nothing
    jvm: Any = spark._jvm
    files = jvm.org.apache.hadoop.fs.FileSystem.get(
        jvm.java.net.URI.create("file:///"), spark.sparkContext._jsc.hadoopConfiguration()
    )
    assert files.getClass().getName() == LOCAL_FILE_SYSTEM
    path = jvm.org.apache.hadoop.fs.Path(str(tmp_path / "file"))
    stream = files.create(path, True)
    stream.write(bytearray(b"text"))
    stream.close()
    files.setPermission(path, jvm.org.apache.hadoop.fs.permission.FsPermission("640"))
    assert (tmp_path / "file").read_bytes() == b"text"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / ".file.crc").exists()


def test_the_daemon_of_workers_collects_through_its_module_gc(spark: SparkSession) -> None:
    def frozen(_: int) -> int:
        import gc

        return gc.get_freeze_count()

    assert spark.sparkContext.getConf().get("spark.python.daemon.module") == process.WORKER_DAEMON
    deadline = time.monotonic() + 30
    while min(spark.sparkContext.parallelize([0, 1], 2).map(frozen).collect()) == 0:
        assert time.monotonic() < deadline, "a worker that has run a task has frozen nothing"


def test_py4j_raises_its_error_for_what_java_does_not_have(spark: SparkSession) -> None:
    with pytest.raises(Py4JError):
        spark._jvm.java.lang.System.noSuchMethod()  # type: ignore[union-attr]


def test_cloudpickle_sends_modules_by_value() -> None:
    module = ModuleType("module_that_no_process_can_import")
    module.double = lambda n: 2 * n  # type: ignore[attr-defined]
    module.double.__module__ = module.__name__
    sys.modules[module.__name__] = module
    try:
        process.send_by_value(module)
        sent = cloudpickle.dumps(module.double)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
        del sys.modules[module.__name__]
    assert cloudpickle.loads(sent)(21) == 42


@pytest.mark.parametrize("name", process.QUERY_CONTEXT_LOGGERS)
def test_the_loggers_of_errors(spark: SparkSession, name: str) -> None:
    assert name in logging.Logger.manager.loggerDict
    assert not logging.getLogger(name).isEnabledFor(logging.CRITICAL)


@pytest.mark.parametrize("name", [process.CHECKPOINT_FILE_MANAGER, process.ROCKSDB_STATE, process.IN_MEMORY_STATE])
def test_the_names_of_the_classes_in_settings(spark: SparkSession, name: str) -> None:
    loader = spark._jvm.Thread.currentThread().getContextClassLoader()  # type: ignore[union-attr]
    assert loader.loadClass(name).getName() == name


# Nobody else uses them.

PRIVATE_ATTRIBUTES = {
    "_active_spark_context",
    "_gateway",
    "_jc",
    "_jdf",
    "_jmap",
    "_jrdd",
    "_jreader",
    "_jsc",
    "_jschema",
    "_jseq",
    "_jsparkSession",
    "_jsq",
    "_jvm",
    "_jwrite",
    "_load_from_socket",
    "_sc",
    "_to_java_column",
    "collectAsArrowToPython",
    "lastExecution",
    "queryExecution",
    "streamingQuery",
}
PRIVATE_MODULES = (
    "py4j",
    "pyspark.cloudpickle",
    "pyspark.core",
    "pyspark.errors.exceptions",
    "pyspark.java_gateway",
    "pyspark.serializers",
    "pyspark.sql.classic",
    "pyspark.sql.connect",
    "pyspark.sql.pandas",
    "pyspark.sql.utils",
    "pyspark.util",
    "pyspark.worker",
)
PRIVATE_TEXTS = (
    "UnsupportedOperationChecker",
    "logOffset",
    "org.apache.spark.sql",
    "precisetimestampconversion",
    "spark.sessionWindow",
    "spark.watermarkDelayMs",
    "transformWithStateIn",
)
PRIVATE_PACKAGES = ("engine/spark_private/", "operators/spark_private.py")


def private_parts(source: str) -> Iterator[str]:
    """The private parts of Spark that a module uses, each with its line."""
    tree = ast.parse(source)
    docstrings = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr)}
    for one in ast.walk(tree):
        match one:
            case ast.Attribute(attr=name) if name in PRIVATE_ATTRIBUTES:
                yield f"{one.lineno}: .{name}"
            case ast.Import(names=names):
                yield from (f"{one.lineno}: {alias.name}" for alias in names if is_private_module(alias.name))
            case ast.ImportFrom(module=str(module), names=names):
                yield from (
                    f"{one.lineno}: {module}.{alias.name}"
                    for alias in names
                    if is_private_module(f"{module}.{alias.name}") or alias.name in PRIVATE_ATTRIBUTES
                )
            case ast.Constant(value=str(text)) if id(one) not in docstrings:
                named = text in PRIVATE_ATTRIBUTES or any(private in text for private in PRIVATE_TEXTS)
                yield from [f"{one.lineno}: {text!r}"] if named else []


def is_private_module(name: str) -> bool:
    return any(name == private or name.startswith(f"{private}.") for private in PRIVATE_MODULES)


def test_no_other_module_uses_the_private_parts_of_spark() -> None:
    package = Path(headrace.__file__).parent
    found = [
        f"{path.relative_to(package)}:{part}"
        for path in sorted(package.rglob("*.py"))
        if not str(path.relative_to(package)).startswith(PRIVATE_PACKAGES)
        for part in private_parts(path.read_text())
    ]
    assert found == []


def test_private_parts_are_found_in_whatever_form_they_are_used() -> None:
    used = """
from pyspark.util import _load_from_socket
from py4j.protocol import Py4JError
import pyspark.serializers
frame._jdf.queryExecution()
getattr(query, "_jsq")
CHECKER = "org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker"
"""
    assert sorted(part[0] for part in private_parts(used)) == list("2345567")
    assert list(private_parts('"""Says _jdf and logOffset."""\nimport pyspark\nself._java\n')) == []
