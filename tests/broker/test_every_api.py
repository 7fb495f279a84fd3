"""Every API in every version served, over a socket: whatever is asked, a readable answer comes."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from kio.schema.api_versions.v0 import ApiVersionsResponse as ApiVersionsV0

from headrace.broker import Broker
from headrace.broker.errors import ErrorCode
from headrace.broker.wire import codec, schema
from headrace.broker.wire.apis import APIS
from tests.broker.kiobridge import kio_entity
from tests.broker.rawclient import RawClient

PRODUCE = 0
VERSIONS = [(api.key, version) for api in APIS.values() for version in range(api.min, api.max + 1)]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """A broker on a loop of its own thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    broker = Broker(tmp_path_factory.mktemp("broker"), settings={"group.initial.rebalance.delay.ms": "0"})
    asyncio.run_coroutine_threadsafe(broker.start(), loop).result(20)
    yield broker.host, broker.port
    asyncio.run_coroutine_threadsafe(broker.stop(), loop).result(20)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def client(address: tuple[str, int]) -> Iterator[RawClient]:
    with RawClient(*address) as connected:
        yield connected


def named(value: int) -> str:
    return str(value)


@pytest.mark.parametrize(("key", "version"), VERSIONS, ids=named)
@pytest.mark.parametrize("fill", ["empty", "full"])
def test_a_request_is_answered(
    client: RawClient, key: int, version: int, fill: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With nothing in it, and with one or two of everything."""
    body = full_body(schema.load(key, version, "request")) if fill == "full" else {}
    if key == PRODUCE:
        body["acks"] = 1  # 0 gets no answer
    client.call(key, version, body)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def full_body(description: schema.Struct) -> dict[str, Any]:
    return {field.name: full_value(field) for field in (*description.in_order, *description.tagged)}


def full_value(field: schema.Field) -> Any:
    if field.struct is not None:
        value: Any = full_body(field.struct)
    else:
        plain = {"string": "name", "bytes": b"bytes", "records": b"records", "uuid": UUID(int=7)}
        value = plain.get(field.kind, 1)
    return [value, value] if field.is_array else value


def test_an_unknown_version_of_api_versions_is_told_the_known_ones(client: RawClient) -> None:
    client.send_frame(codec.request_header(18, 30, 77, "future") + b"\x01\x02\x03")
    frame = client.recv_frame()
    assert frame[:4] == b"\0\0\0\x4d"
    answer = kio_entity(ApiVersionsV0, frame[4:])
    assert int(answer.error_code) == ErrorCode.UNSUPPORTED_VERSION
    assert {one.api_key: one.max_version for one in answer.api_keys}[18] == APIS[18].max
    assert client.call(18, 0).error_code == 0, "the connection stays open for a second try"


@pytest.mark.parametrize(("key", "version"), [(0, 2), (1, 3), (1, 19), (3, 14), (26, 5), (17, 1), (68, 1), (9999, 0)])
def test_what_is_not_served_closes_the_connection(client: RawClient, key: int, version: int) -> None:
    client.send_frame(codec.request_header(key, version, 1, "x") + bytes(100))
    assert client.closed_by_peer()
