"""The tools that come with Apache Kafka, run against the broker as an operator would."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.peers import classpath, jars, java

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"


class Tools:
    def __init__(self, address: str) -> None:
        self._address = address
        self._classpath = classpath(jars("kafka-4.3"), jars("kafka-tools-4.3"))

    def __call__(self, tool: str, *words: str, code: int = 0) -> str:
        """What a tool prints; its own arguments come after the broker's address."""
        command = [java(), "-Xmx256M", "-XX:TieredStopAtLevel=1", "-cp", self._classpath, tool]
        done = subprocess.run(
            [*command, "--bootstrap-server", self._address, *words],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def tools(broker_address: str) -> Tools:
    return Tools(broker_address)


def test_topics_and_their_configs(tools: Tools, topic: str) -> None:
    tools(TOPICS, "--create", "--topic", topic, "--partitions", "2", "--config", "retention.ms=60000")
    tools(TOPICS, "--alter", "--topic", topic, "--partitions", "3")
    described = tools(TOPICS, "--describe", "--topic", topic)
    assert "PartitionCount: 3\tReplicationFactor: 1\tConfigs: " in described
    assert "retention.ms=60000" in described
    assert described.count("Leader: 1\tReplicas: 1\tIsr: 1") == 3
    entity = ("--entity-type", "topics", "--entity-name", topic)
    tools(CONFIGS, *entity, "--alter", "--add-config", "segment.ms=70000,cleanup.policy=[delete]")
    assert "segment.ms=70000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:segment.ms=70000" in tools(
        CONFIGS, *entity, "--describe"
    )
    tools(CONFIGS, *entity, "--alter", "--delete-config", "segment.ms")
    assert "segment.ms" not in tools(CONFIGS, *entity, "--describe")
    refused = tools(TOPICS, "--create", "--topic", f"{topic}-x", "--config", "segment.ms=0", code=1)
    assert "Invalid value 0 for configuration segment.ms: Value must be at least 1" in refused
    tools(TOPICS, "--delete", "--topic", topic)
    assert topic not in tools(TOPICS, "--list").split()


def test_the_broker_and_its_logs(tools: Tools, topic: str, tmp_path: Path) -> None:
    tools(TOPICS, "--create", "--topic", topic)
    entity = ("--entity-type", "brokers", "--entity-name", "1")
    assert "group.initial.rebalance.delay.ms=0" in tools(CONFIGS, *entity, "--describe", "--all")
    refused = tools(CONFIGS, *entity, "--alter", "--add-config", "num.partitions=9", code=1)
    assert "Cannot update these configs dynamically: " in refused
    assert f"{topic}:0:0" in tools("org.apache.kafka.tools.GetOffsetShell", "--topic", topic)
    assert f'"partition":"{topic}-0"' in tools(
        "org.apache.kafka.tools.LogDirsCommand", "--describe", "--topic-list", topic
    )
    offsets = tmp_path / "offsets.json"
    offsets.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 0}]}))
    assert "low_watermark: 0" in tools(
        "org.apache.kafka.tools.DeleteRecordsCommand", "--offset-json-file", str(offsets)
    )


def test_the_cluster(tools: Tools, topic: str, tmp_path: Path) -> None:
    tools(TOPICS, "--create", "--topic", topic)
    assert "LeaderId:               1" in tools(QUORUM, "describe", "--status")
    assert "Leader" in tools(QUORUM, "describe", "--replication")
    election = "org.apache.kafka.tools.LeaderElectionCommand"
    tools(election, "--election-type", "preferred", "--all-topic-partitions")
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": [1]}]}))
    reassign = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
    assert f"Reassignment of partition {topic}-0 is completed." in tools(
        reassign, "--reassignment-json-file", str(plan), "--verify"
    )
    assert "ProducerId" in tools(
        "org.apache.kafka.tools.TransactionsCommand", "describe-producers", "--topic", topic, "--partition", "0"
    )
