"""Requests and responses to and from bytes, in every version served.

A reader or writer is built from the schema the first time its message is met, and kept. What is read are
plain namespaces, what is written plain mappings; both know every field of the API whatever the version, so
that handlers need not know versions.
"""

import struct
from collections.abc import Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

from headrace.broker.wire import schema
from headrace.broker.wire.apis import APIS
from headrace.broker.wire.readers import (
    MalformedRequest,
    MessageReader,
    read_nullable_string,
    skip_tagged_fields,
)
from headrace.broker.wire.schema import Direction
from headrace.broker.wire.writers import NO_TAGGED_FIELDS, UnwritableBody, Writer, struct_writer

__all__ = [
    "MalformedRequest",
    "RequestHeader",
    "UnwritableBody",
    "has_error_code",
    "is_flexible",
    "read_header",
    "read_request",
    "read_response",
    "request_header",
    "response_header",
    "write_request",
    "write_response",
]

API_VERSIONS = 18
# What reading past the end, or text that is not UTF-8, raises.
_GARBLED = (struct.error, IndexError, UnicodeDecodeError)
_FIXED_HEADER = struct.Struct(">hhi")
_CORRELATION_ID = struct.Struct(">i")


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_offset: int


def read_request(api_key: int, version: int, buffer: memoryview, offset: int = 0) -> SimpleNamespace:
    """The body of a request that begins at `offset`."""
    return _read(api_key, version, "request", buffer, offset)


def read_response(api_key: int, version: int, buffer: memoryview, offset: int = 0) -> SimpleNamespace:
    """The body of a response that begins at `offset`."""
    return _read(api_key, version, "response", buffer, offset)


def write_request(api_key: int, version: int, body: Mapping[str, Any]) -> bytes:
    """The bytes of a request's body, without header."""
    return _write(api_key, version, "request", body)


def write_response(api_key: int, version: int, body: Mapping[str, Any]) -> bytes:
    """The bytes of a response's body, without header."""
    return _write(api_key, version, "response", body)


def read_header(buffer: memoryview) -> RequestHeader:
    """The header of a request. Of an API that is not served, tagged fields are left unread."""
    try:
        api_key, version, correlation_id = _FIXED_HEADER.unpack_from(buffer)
        client_id, offset = read_nullable_string(buffer, _FIXED_HEADER.size)
        if is_flexible(api_key, version):
            offset = skip_tagged_fields(buffer, offset)
    except _GARBLED as error:
        raise MalformedRequest("the header of the request is truncated or malformed") from error
    return RequestHeader(api_key, version, correlation_id, client_id, offset)


def request_header(api_key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """The header a client sends before the body."""
    name = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(name)
    tagged = NO_TAGGED_FIELDS if is_flexible(api_key, version) else b""
    return struct.pack(">hhih", api_key, version, correlation_id, length) + name + tagged


def response_header(api_key: int, version: int, correlation_id: int) -> bytes:
    """The header of a response; of ApiVersions always the oldest, since its client may know no other."""
    if is_flexible(api_key, version) and api_key != API_VERSIONS:
        return _CORRELATION_ID.pack(correlation_id) + NO_TAGGED_FIELDS
    return _CORRELATION_ID.pack(correlation_id)


def is_flexible(api_key: int, version: int) -> bool:
    """Whether this version has compact lengths and tagged fields."""
    api = APIS.get(api_key)
    return api is not None and version >= api.flexible_from


@cache
def has_error_code(api_key: int, version: int) -> bool:
    """Whether a response of this version can say that the request failed as a whole."""
    return any(field.name == "error_code" for field in schema.load(api_key, version, "response").in_order)


def _read(api_key: int, version: int, direction: Direction, buffer: memoryview, offset: int) -> SimpleNamespace:
    reader = _reader(api_key, version, direction)
    try:
        return reader.read(buffer, offset)[0]
    except _GARBLED as error:
        raise MalformedRequest(f"the {direction} {api_key} v{version} is truncated or malformed") from error


def _write(api_key: int, version: int, direction: Direction, body: Mapping[str, Any]) -> bytes:
    out: list[bytes] = []
    _writer(api_key, version, direction)(out, body)
    return b"".join(out)


@cache
def _reader(api_key: int, version: int, direction: Direction) -> MessageReader:
    return MessageReader(schema.load(api_key, version, direction))


@cache
def _writer(api_key: int, version: int, direction: Direction) -> Writer:
    return struct_writer(schema.load(api_key, version, direction))
