"""Records as lines of text. `produce --json-lines` reads what `consume --json` prints."""

import base64
import binascii
import json
from typing import Any, NamedTuple

from headrace import InputError

_FIELDS = ("key", "value", "headers", "partition", "timestamp")
_IGNORED = ("topic", "offset")  # consume prints them; where a record came from does not bind where it goes

Headers = list[tuple[str, str | bytes | None]]


class Record(NamedTuple):
    """A record before it is sent."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None = None
    timestamp: int | None = None


def to_json(data: bytes | None) -> str | dict[str, str] | None:
    """Text if it is UTF-8, else `{"base64": ...}`."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def from_json(value: Any, what: str) -> bytes | None:
    """The bytes of a JSON value: text, base64 if so marked, and any other value as compact JSON."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"}:
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise InputError(f'"{what}" is not valid base64') from None
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def parse_json_line(line: bytes, headers: Headers) -> Record:
    """One object with any of key, value, headers, partition, timestamp."""
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise InputError(f"not valid JSON ({error})") from None
    if not isinstance(fields, dict):
        raise InputError(f"expected a JSON object, found {type(fields).__name__}")
    unknown = fields.keys() - {*_FIELDS, *_IGNORED}
    if unknown:
        raise InputError(f'unknown field "{min(unknown)}"', next_step=f"use {', '.join(_FIELDS)}")
    return Record(
        key=from_json(fields.get("key"), "key"),
        value=from_json(fields.get("value"), "value"),
        headers=headers + _headers(fields.get("headers")),
        partition=_whole_number(fields, "partition"),
        timestamp=_whole_number(fields, "timestamp"),
    )


def parse_plain_line(line: bytes, separator: bytes | None, headers: Headers) -> Record:
    """A line is a value, or a key and a value with the separator between."""
    if separator is None:
        return Record(None, line, headers)
    key, found, value = line.partition(separator)
    if not found:
        raise InputError(f"the line does not contain the separator {separator.decode()!r}")
    return Record(key, value, headers)


def _headers(value: Any) -> Headers:
    if value is None:
        return []
    items = list(value.items()) if isinstance(value, dict) else value
    if not isinstance(items, list) or not all(
        isinstance(item, (list, tuple)) and len(item) == 2 and isinstance(item[0], str) for item in items
    ):
        raise InputError('"headers" must be {"name": "value"} or [["name", "value"]]')
    return [(name, from_json(content, f"headers.{name}")) for name, content in items]


def _whole_number(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InputError(f'"{name}" must be a whole number, not {json.dumps(value)}')
    return value
