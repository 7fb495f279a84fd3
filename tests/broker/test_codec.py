"""The codec against kio, and against bytes nobody should send."""

import dataclasses
import struct
import subprocess
import sys
import tracemalloc
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.schema.request_header.v1 import RequestHeader as HeaderV1
from kio.schema.request_header.v2 import RequestHeader as HeaderV2

from headrace.broker.wire import codec, readers, schema
from headrace.broker.wire.apis import APIS
from headrace.broker.wire.codec import MalformedRequest, UnwritableBody
from headrace.broker.wire.errors import ApiError, ErrorCode
from headrace.broker.wire.writers import struct_writer
from tests.broker import kiobridge
from tests.broker.kiobridge import Direction
from tests.broker.schema_table import TABLE, table

Message = tuple[int, int, Direction]

SERVED: list[Message] = [
    (api.key, version, direction)
    for api in APIS.values()
    for version in range(api.min, api.max + 1)
    for direction in ("request", "response")
]
FLEXIBLE = [message for message in SERVED if codec.is_flexible(message[0], message[1])]

quick = settings(
    max_examples=8,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
thorough = settings(quick, max_examples=400)


def named(message: Message) -> str:
    key, version, direction = message
    return f"{APIS[key].name}-v{version}-{direction}"


every_message = pytest.mark.parametrize("message", SERVED, ids=named)


def write(message: Message, body: dict[str, Any]) -> bytes:
    key, version, direction = message
    writer = codec.write_request if direction == "request" else codec.write_response
    return writer(key, version, body)


def read(message: Message, data: bytes, offset: int = 0) -> SimpleNamespace:
    key, version, direction = message
    reader = codec.read_request if direction == "request" else codec.read_response
    return reader(key, version, memoryview(data), offset)


def full_body(description: schema.Struct) -> dict[str, Any]:
    """A body with every field set to something, and two items in every array."""
    return {field.name: full_value(field) for field in (*description.in_order, *description.tagged)}


def full_value(field: schema.Field) -> Any:
    if field.struct is not None:
        value: Any = full_body(field.struct)
    else:
        plain = {"string": "näme", "bytes": b"bytes", "records": b"records", "uuid": UUID(int=7)}
        value = plain.get(field.kind, 1)
    return [value, value] if field.is_array else value


def full_bytes(message: Message) -> bytes:
    return write(message, full_body(schema.load(*message)))


# Agreement with kio


@every_message
@quick
@given(data=st.data())
def test_bytes_are_those_kio_writes_and_read_back(message: Message, data: st.DataObject) -> None:
    cls = kiobridge.entity_class(*message)
    body = data.draw(kiobridge.bodies(cls))
    entity = kiobridge.to_entity(cls, body)

    written = write(message, body)

    assert written == kiobridge.kio_bytes(entity)
    assert kiobridge.kio_entity(cls, written) == entity
    assert kiobridge.to_body(cls, read(message, b"before" + written, 6)) == body


def test_the_table_is_what_kio_says() -> None:
    assert TABLE.read_text("utf-8") == table(), "run: python -m tests.broker.schema_table"


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_apis_are_named_and_flexible_as_in_kafka(api: Any) -> None:
    versions = schema_name_map[api_key_map[api.key]]
    assert api.name == api_key_map[api.key]
    assert set(range(api.min, api.max + 1)) <= set(versions)
    for version in versions:
        request = kiobridge.entity_class(api.key, version, "request")
        response = kiobridge.entity_class(api.key, version, "response")
        assert codec.is_flexible(api.key, version) == request.__flexible__ == response.__flexible__


def test_error_codes_are_kafkas() -> None:
    assert {code.name: int(code) for code in ErrorCode} == {code.name.upper(): int(code) for code in KioErrorCode}


def test_api_error_tells_its_code_and_message() -> None:
    assert str(ApiError(ErrorCode.INVALID_REQUEST)) == "INVALID_REQUEST"
    error = ApiError(ErrorCode.INVALID_CONFIG, "no such thing")
    assert (error.code, error.message, str(error)) == (40, "no such thing", "INVALID_CONFIG: no such thing")


# Every field, whatever the version


@every_message
def test_every_version_has_every_field(message: Message) -> None:
    key, _, direction = message
    found = read(message, full_bytes(message))
    for version in schema_name_map[APIS[key].name]:
        cls = kiobridge.entity_class(key, version, direction)
        assert {field.name for field in dataclasses.fields(cls)} <= set(vars(found))


def test_fields_of_other_versions_have_their_default() -> None:
    old = read((1, 4, "request"), write((1, 4, "request"), {"topics": [{"topic": "t", "partitions": [{}]}]}))
    assert (old.session_epoch, old.rack_id, old.cluster_id, old.forgotten_topics_data) == (-1, "", None, [])
    assert old.replica_state == SimpleNamespace(replica_id=-1, replica_epoch=-1)
    assert old.topics[0].topic_id == UUID(int=0)
    assert old.topics[0].partitions[0].current_leader_epoch == -1
    assert read((3, 0, "request"), write((3, 0, "request"), {})).allow_auto_topic_creation is True


def test_defaults_are_not_shared() -> None:
    message: Message = (1, 4, "request")
    first, second = (read(message, full_bytes(message)) for _ in range(2))
    first.forgotten_topics_data.append("mine")
    first.replica_state.replica_id = 5
    assert second.forgotten_topics_data == []
    assert second.replica_state.replica_id == -1


def test_records_are_not_copied_and_other_bytes_are() -> None:
    data = write((0, 9, "request"), {"topic_data": [{"partition_data": [{"records": b"batch"}]}]})
    records = read((0, 9, "request"), data).topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert records.obj is data

    data = write((14, 0, "request"), {"assignments": [{"assignment": b"mine"}]})
    assert type(read((14, 0, "request"), data).assignments[0].assignment) is bytes


# Bodies


def test_a_missing_key_gets_its_default() -> None:
    assert write((12, 4, "response"), {}) == write((12, 4, "response"), {"throttle_time": 0, "error_code": 0})


def test_a_key_of_another_version_is_ignored() -> None:
    assert write((12, 0, "response"), {"throttle_time": 5, "error_code": 3}) == b"\0\x03"


def test_a_null_this_version_cannot_say_is_empty() -> None:
    joined = {"protocol_name": None}
    assert read((11, 7, "response"), write((11, 7, "response"), joined)).protocol_name is None
    assert read((11, 6, "response"), write((11, 6, "response"), joined)).protocol_name == ""


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"eror_code": 1}, "eror_code"),
        ({"topics": [{"partitions": [{"leeder_id": 1}]}]}, "leeder_id"),
        ({"controller_id": 1 << 31}, "controller_id"),
        ({"controller_id": None}, "controller_id"),
        ({"brokers": None}, "brokers"),
        ({"brokers": [{"host": None}]}, "host"),
        ({"brokers": [{"host": 5}]}, "host"),
        ({"brokers": [5]}, "brokers"),
        ({"topics": [{"topic_id": "text"}]}, "topic_id"),
        ({"topics": [{"partitions": [{"isr_nodes": ["one"]}]}]}, "isr_nodes"),
    ],
)
def test_what_cannot_be_written_is_named(body: dict[str, Any], told: str) -> None:
    with pytest.raises(UnwritableBody, match=told):
        codec.write_response(3, 12, body)


def test_whether_a_failure_can_be_told_depends_on_the_version() -> None:
    assert codec.has_error_code(12, 0)
    assert [codec.has_error_code(9, version) for version in (1, 2, 7, 8)] == [False, True, True, False]
    assert not codec.has_error_code(0, 9)


# Bytes nobody should send


@every_message
def test_every_truncation_is_malformed(message: Message) -> None:
    data = full_bytes(message)
    read(message, data)
    for length in range(len(data)):
        with pytest.raises(MalformedRequest):
            read(message, data[:length])


@thorough
@given(message=st.sampled_from(SERVED), data=st.binary(max_size=200))
def test_random_bytes_raise_nothing_else(message: Message, data: bytes) -> None:
    try:
        read(message, data)
    except MalformedRequest:
        pass


@thorough
@given(message=st.sampled_from(SERVED), data=st.data())
def test_altered_bytes_raise_nothing_else(message: Message, data: st.DataObject) -> None:
    altered = bytearray(full_bytes(message))
    if altered:
        places = st.tuples(st.integers(0, len(altered) - 1), st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]))
        for place, value in data.draw(st.lists(places, min_size=1, max_size=4)):
            altered[place] = value
    try:
        read(message, bytes(altered))
    except MalformedRequest:
        pass


@pytest.mark.parametrize("message", FLEXIBLE, ids=named)
def test_unknown_tagged_fields_are_skipped(message: Message) -> None:
    today = schema.load(*message)
    out: list[bytes] = []
    struct_writer(with_unknown_tag(today))(out, mark(full_body(today)))
    future = b"".join(out)
    assert future != full_bytes(message)
    assert read(message, future) == read(message, full_bytes(message))


def with_unknown_tag(description: schema.Struct) -> schema.Struct:
    """The same struct, and those in it, as a later version might have them: with one more tagged field."""
    unknown = schema.Field("unknown", "string", False, False, False, 300, "", None)

    def later(field: schema.Field) -> schema.Field:
        inner = None if field.struct is None else with_unknown_tag(field.struct)
        return dataclasses.replace(field, struct=inner)

    return dataclasses.replace(
        description,
        in_order=tuple(later(field) for field in description.in_order),
        tagged=(*(later(field) for field in description.tagged), unknown),
    )


def mark(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: mark(inner) for name, inner in value.items()} | {"unknown": "x" * 200}
    return [mark(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("message", "data"),
    [
        ((3, 1, "request"), struct.pack(">i", 0x7FFFFFFF)),
        ((3, 12, "request"), b"\xff\xff\xff\xff\x07" + bytes(100)),
        ((3, 12, "request"), b"\xff\xff\xff\xff\x0f" + bytes(100)),
        ((22, 0, "request"), struct.pack(">h", 0x7FFF)),
        ((14, 0, "request"), struct.pack(">hih", 0, 0, 0) + struct.pack(">ihi", 1, 0, 0x7FFFFFFF)),
        ((12, 4, "request"), b"\xff\xff\xff\xff\x07" + bytes(100)),
        # A tagged field's size, and an array of numbers
        ((12, 4, "request"), b"\x01\0\0\0\0\x01\0\x01\x09\xff\xff\xff\xff\x07"),
        (
            (3, 12, "response"),
            bytes(4) + b"\x01\0\0\0\0\0\x02\0\0\x01" + bytes(17) + b"\x02" + bytes(14) + b"\xff\xff\x7f",
        ),
    ],
)
def test_a_length_beyond_the_message_is_malformed_and_allocates_nothing(message: Message, data: bytes) -> None:
    with pytest.raises(MalformedRequest):
        read(message, data)  # compiles the reader, which is not to be counted
    tracemalloc.start()
    try:
        with pytest.raises(MalformedRequest):
            read(message, data)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_an_array_must_fit_by_the_least_size_of_its_items() -> None:
    partitions = b"\x65" + bytes(99)  # 100 partitions of 21 bytes and more
    fetch = struct.pack(">iiiibii", -1, 0, 0, 0, 0, 0, 0) + b"\x02\x02t" + partitions
    with pytest.raises(MalformedRequest, match="100 items"):
        codec.read_request(1, 12, memoryview(fetch), 0)


def test_a_message_of_very_many_items_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MOST_ITEMS", 100)
    message: Message = (9, 8, "request")
    group = {"topics": [{"name": "t", "partition_indexes": [1] * 1000}] * 49}
    for _ in range(2):
        assert len(read(message, write(message, {"groups": [group] * 2})).groups) == 2
    with pytest.raises(MalformedRequest, match="more than 100 items"):
        read(message, write(message, {"groups": [group] * 3}))


@pytest.mark.parametrize(
    ("message", "data", "told"),
    [
        ((12, 4, "request"), b"\0\0\0\0\0\x01\0\0", "null"),
        ((12, 0, "request"), b"\xff\xff\0\0\0\0\0\0", "null"),
        ((3, 0, "request"), b"\xff\xff\xff\xff", "null"),
        ((12, 4, "request"), b"\x03\xff\xfe\0\0\0\0\x01\0\0", "malformed"),
        ((12, 4, "request"), b"\x80\x80\x80\x80\x80\x01" + bytes(10), "five bytes"),
        ((12, 4, "request"), b"\x81\x80\x02" + b"x" * 0x8000 + b"\0\0\0\0\x01\0\0", "too long"),
        # A known tagged field that says it is longer than it is
        ((1, 12, "request"), bytes(25) + b"\x01\x01\x01\x01\0\x04\x02a\0\0", "as long as"),
    ],
)
def test_what_the_schema_forbids_is_malformed(message: Message, data: bytes, told: str) -> None:
    with pytest.raises(MalformedRequest, match=told):
        read(message, data)


# Headers


@given(
    api_key=st.sampled_from([*APIS, 36, 999]),
    version=st.integers(0, 20),
    correlation_id=st.integers(-(1 << 31), (1 << 31) - 1),
    client_id=st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=50),
)
def test_request_header_is_the_one_kio_writes(
    api_key: int, version: int, correlation_id: int, client_id: str | None
) -> None:
    kind = HeaderV2 if codec.is_flexible(api_key, version) else HeaderV1
    expected = kiobridge.kio_bytes(
        kind(
            request_api_key=api_key,
            request_api_version=version,
            correlation_id=correlation_id,
            client_id=client_id,
        )
    )
    assert codec.request_header(api_key, version, correlation_id, client_id) == expected
    header = codec.read_header(memoryview(expected + b"body"))
    assert header == (api_key, version, correlation_id, client_id, len(expected))
    for length in range(len(expected)):
        with pytest.raises(MalformedRequest):
            codec.read_header(memoryview(expected[:length]))


def test_unknown_tagged_fields_of_a_header_are_skipped() -> None:
    data = struct.pack(">hhih", 12, 4, 9, -1) + b"\x02\x05\x03abc\x80\x01\x00" + b"body"
    assert codec.read_header(memoryview(data)) == (12, 4, 9, None, len(data) - 4)


def test_response_header_is_flexible_except_for_api_versions() -> None:
    assert codec.response_header(12, 3, 7) == b"\0\0\0\x07"
    assert codec.response_header(12, 4, 7) == b"\0\0\0\x07\0"
    assert codec.response_header(18, 4, 7) == b"\0\0\0\x07"
    assert codec.response_header(999, 4, 7) == b"\0\0\0\x07"


# The cost of being there


def test_kio_is_not_imported_by_the_broker() -> None:
    program = """
import sys
from headrace.broker.wire import codec
codec.read_request(3, 12, memoryview(codec.write_request(3, 12, {})), 0)
assert not {"kio", "hypothesis"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


def test_a_struct_may_be_null() -> None:
    message: Message = (75, 0, "response")
    null = read(message, write(message, {}))
    assert null.next_cursor is None
    cursor = read(message, write(message, {"next_cursor": {"topic_name": "t", "partition_index": 3}})).next_cursor
    assert cursor == SimpleNamespace(topic_name="t", partition_index=3)
