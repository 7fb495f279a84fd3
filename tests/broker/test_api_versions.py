"""ApiVersions: what is told to clients, in every version and to those that ask in an unknown one."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.api_versions.v0 import ApiVersionsResponse as ResponseV0

from headrace.broker.errors import ErrorCode
from headrace.broker.wire import codec
from headrace.broker.wire.apis import APIS, Api
from headrace.broker.wire.handlers import HANDLERS, RequestContext, dispatch, handler
from headrace.broker.wire.handlers.api_versions import unsupported_version_body
from tests.broker.kiobridge import entity_class, kio_entity

API_VERSIONS = 18
ADVERTISED = {api.key: (api.advertised_min, api.max) for api in APIS.values()}


def ask(version: int, body: dict[str, Any]) -> SimpleNamespace:
    """Through the codec both ways, as a client would."""
    request = codec.read_request(API_VERSIONS, version, memoryview(codec.write_request(API_VERSIONS, version, body)), 0)
    context = RequestContext(version, "test", "127.0.0.1")
    # The answer depends on nothing the broker holds.
    answer = asyncio.run(dispatch(cast(Any, None), API_VERSIONS, request, context))
    return codec.read_response(
        API_VERSIONS, version, memoryview(codec.write_response(API_VERSIONS, version, answer)), 0
    )


def ranges(response: Any) -> dict[int, tuple[int, int]]:
    return {one.api_key: (one.min_version, one.max_version) for one in response.api_keys}


NAMED = {"client_software_name": "apache-kafka-java", "client_software_version": "4.3.0"}


@pytest.mark.parametrize("version", range(5))
def test_every_version_tells_every_range(version: int) -> None:
    response = ask(version, NAMED)
    assert response.error_code == ErrorCode.NONE
    assert ranges(response) == ADVERTISED
    assert response.throttle_time == 0


@pytest.mark.parametrize("version", [3, 4])
def test_no_features_and_no_finalized_epoch(version: int) -> None:
    response = ask(version, NAMED)
    assert response.supported_features == response.finalized_features == []
    assert response.finalized_features_epoch == -1
    assert response.zk_migration_ready is False


@pytest.mark.parametrize("version", range(5))
def test_kio_reads_the_answer(version: int) -> None:
    answer = asyncio.run(
        dispatch(cast(Any, None), API_VERSIONS, SimpleNamespace(**NAMED), RequestContext(version, None, "127.0.0.1"))
    )
    cls = entity_class(API_VERSIONS, version, "response")
    entity = kio_entity(cls, codec.write_response(API_VERSIONS, version, answer))
    assert ranges(entity) == ADVERTISED


def test_unknown_version_is_told_in_version_0() -> None:
    entity = kio_entity(ResponseV0, unsupported_version_body())
    assert int(entity.error_code) == ErrorCode.UNSUPPORTED_VERSION
    assert ranges(entity) == ADVERTISED
    assert ranges(entity)[API_VERSIONS] == (0, 4)


def test_the_header_of_an_unknown_version_is_read_and_answered_in_version_0() -> None:
    header = codec.read_header(memoryview(codec.request_header(API_VERSIONS, 30, 5, "future") + b"whatever"))
    assert header[:4] == (API_VERSIONS, 30, 5, "future")
    assert codec.response_header(API_VERSIONS, 30, 5) == b"\0\0\0\x05"


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("name", ["", "-x", "x-", "x.", "a b", "a_b", "é", "a\n"])
def test_a_software_name_kafka_refuses_is_an_invalid_request(version: int, name: str) -> None:
    for field in NAMED:
        response = ask(version, NAMED | {field: name})
        assert response.error_code == ErrorCode.INVALID_REQUEST
        assert response.api_keys == []


@pytest.mark.parametrize("name", ["x", "librdkafka", "2.16.0", "a--b..c"])
def test_a_software_name_kafka_takes_is_taken(name: str) -> None:
    assert ask(3, dict.fromkeys(NAMED, name)).error_code == ErrorCode.NONE


def test_software_names_do_not_matter_before_version_3() -> None:
    assert ask(2, {}).error_code == ErrorCode.NONE


# What is served, word for word: produce is advertised from 0, since old librdkafka compresses only then.
SERVED = """
    0 0-13, 1 4-18, 2 1-11, 3 0-13, 8 2-10, 9 1-10, 10 0-6, 11 0-9, 12 0-4, 13 0-5, 14 0-5, 15 0-6, 16 0-5,
    18 0-4, 19 2-7, 20 1-6, 21 0-2, 22 0-5, 23 2-4, 24 0-3, 25 0-4, 26 0-4, 28 0-4, 32 1-4, 33 0-2, 34 1-2,
    35 1-5, 37 0-3, 42 0-2, 43 0-2, 44 0-1, 45 0-1, 46 0-0, 47 0-0, 55 0-2, 60 0-2, 61 0-0, 65 0-0, 66 0-2,
    74 0-1, 75 0-0, 76 1-1, 77 1-1, 78 1-2, 79 1-2, 90 0-1, 91 0-0, 92 0-0
"""


def test_exactly_what_is_served_is_advertised() -> None:
    told = ", ".join(f"{key} {low}-{high}" for key, (low, high) in ADVERTISED.items())
    assert told == " ".join(SERVED.split())
    assert APIS[0] == Api(0, "produce", 0, 3, 13, 9)
    assert all(api.min == api.advertised_min for api in APIS.values() if api.key != 0)


@pytest.mark.parametrize("key", HANDLERS)
def test_every_api_has_its_handler(key: int) -> None:
    assert asyncio.iscoroutinefunction(handler(key))
