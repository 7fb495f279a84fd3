"""advertised.listeners: the address that clients are told, and no wildcard address among them."""

from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource

from headrace.broker import Broker
from headrace.errors import BrokerError
from tests.broker.faults.client import Client
from tests.broker.faults.harness import serving
from tests.broker.rawclient import RawClient

METADATA, FIND_COORDINATOR, DESCRIBE_CLUSTER = 3, 10, 60


def test_clients_are_told_the_advertised_address(tmp_path: Path) -> None:
    with serving(tmp_path, settings={"advertised.listeners": "PLAINTEXT://localhost:0"}) as running:
        told = ("localhost", running.broker.port)
        with RawClient(*running.address) as raw:
            brokers = raw.call(METADATA, 12, {"topics": []}).brokers
            assert [(each.host, each.port) for each in brokers] == [told]
            coordinator = raw.call(FIND_COORDINATOR, 3, {"key": "g", "key_type": 0})
            assert (coordinator.host, coordinator.port) == told
            brokers = raw.call(DESCRIBE_CLUSTER, 1, {"endpoint_type": 1}).brokers
            assert [(each.host, each.port) for each in brokers] == [told]
        with Client(running.address) as client:
            client.create_topic("t", 1)
        producer = Producer({"bootstrap.servers": running.broker.address})
        producer.produce("t", b"by the advertised address")
        assert producer.flush(30) == 0


def test_both_addresses_are_shown_to_admin_clients(tmp_path: Path) -> None:
    with serving(tmp_path, settings={"advertised.listeners": "PLAINTEXT://localhost:0"}) as running:
        admin = AdminClient({"bootstrap.servers": running.broker.address})
        resource = ConfigResource(ConfigResource.Type.BROKER, "1")
        shown = admin.describe_configs([resource], request_timeout=20)[resource].result(20)
        assert shown["listeners"].value == "PLAINTEXT://127.0.0.1:0"
        assert shown["advertised.listeners"].value == "PLAINTEXT://localhost:0"


@pytest.mark.parametrize("listen", ["0.0.0.0:9092", "[::]:9092"])
def test_a_wildcard_address_needs_an_advertised_one(tmp_path: Path, listen: str) -> None:
    with pytest.raises(BrokerError, match=r"--set advertised\.listeners=PLAINTEXT://HOST:9092"):
        Broker(tmp_path, listen, insecure=True)
    Broker(tmp_path, listen, {"advertised.listeners": "PLAINTEXT://broker.example.com:9092"}, insecure=True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("PLAINTEXT://0.0.0.0:9092", "wildcard"),
        ("PLAINTEXT://[::]:9092", "wildcard"),
        ("PLAINTEXT://:9092", "wildcard"),
        ("broker:9092", "Expected PLAINTEXT://HOST:PORT"),
        ("SSL://broker:9092", "Expected PLAINTEXT://HOST:PORT"),
        ("PLAINTEXT://broker", "Expected PLAINTEXT://HOST:PORT"),
        ("PLAINTEXT://broker:99999", "Expected PLAINTEXT://HOST:PORT"),
        ("PLAINTEXT://a:1,PLAINTEXT://b:2", "Expected PLAINTEXT://HOST:PORT"),
    ],
)
def test_what_is_no_address_is_refused(tmp_path: Path, given: str, said: str) -> None:
    with pytest.raises(BrokerError, match=said):
        Broker(tmp_path, settings={"advertised.listeners": given})


def test_listeners_is_set_by_listen(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match="--listen HOST:PORT"):
        Broker(tmp_path, settings={"listeners": "PLAINTEXT://127.0.0.1:9092"})
