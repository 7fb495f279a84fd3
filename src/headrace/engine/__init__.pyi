"""The public names. `__init__.py` reads them here and loads each when it is first used."""

from headrace.engine.adapters import SinkAdapter as SinkAdapter
from headrace.engine.adapters import SourceAdapter as SourceAdapter
from headrace.engine.adapters import register_sink as register_sink
from headrace.engine.adapters import register_source as register_source
from headrace.engine.plan.planner import PlannedQuery as PlannedQuery
from headrace.engine.plan.planner import plan_topology as plan_topology
from headrace.engine.read.markers import marker_topic as marker_topic
from headrace.engine.run.checkpoints import Checkpoints as Checkpoints
from headrace.engine.run.jars import Jar as Jar
from headrace.engine.run.node_run import SparkEnded as SparkEnded
from headrace.engine.run.progress import NodeProgress as NodeProgress
from headrace.engine.run.replay import ReplayRequest as ReplayRequest
from headrace.engine.run.replay import plan_replays as plan_replays
from headrace.engine.run.replay import query_named as query_named
from headrace.engine.run.runner import Runner as Runner
from headrace.engine.run.session import LOCAL as LOCAL
from headrace.engine.run.session import STATE_STORES as STATE_STORES
from headrace.engine.run.session import start_session as start_session
from headrace.engine.run.spark_log import spark_log_path as spark_log_path
from headrace.engine.run.topics import read_topics as read_topics
from headrace.engine.run.topics import written_topics as written_topics
from headrace.engine.spark_private.process import has_spark_context as has_spark_context
