"""Records as lines: what is written is what is read, whatever the bytes are."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.records import from_json, parse_json_line, parse_plain_line, to_json
from headrace.config import TopicPosition

CONTENT = st.none() | st.binary() | st.text().map(str.encode)


@given(CONTENT)
def test_any_bytes_survive_json(content: bytes | None) -> None:
    assert from_json(json.loads(json.dumps(to_json(content))), "value") == content


@given(
    key=CONTENT,
    value=CONTENT,
    headers=st.lists(st.tuples(st.text(), CONTENT)),
    partition=st.none() | st.integers(0, 2**31 - 1),
    timestamp=st.none() | st.integers(0, 2**63 - 1),
)
def test_a_record_survives_its_line(
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
    partition: int | None,
    timestamp: int | None,
) -> None:
    line = json.dumps(
        {
            "topic": "somewhere",
            "offset": 7,
            "key": to_json(key),
            "value": to_json(value),
            "headers": [[name, to_json(content)] for name, content in headers],
            "partition": partition,
            "timestamp": timestamp,
        }
    )
    assert parse_json_line(line.encode(), []) == (key, value, headers, partition, timestamp)


@given(key=st.binary(), value=st.binary(), separator=st.binary(min_size=1))
def test_a_line_is_cut_at_the_first_separator(key: bytes, value: bytes, separator: bytes) -> None:
    record = parse_plain_line(key + separator + value, separator, [])
    assert record.key is not None
    assert record.value is not None
    assert record.key + separator + record.value == key + separator + value
    assert separator not in record.key


@given(st.datetimes(datetime(1970, 1, 2), datetime(9000, 1, 1), timezones=st.just(UTC)))
def test_a_time_is_that_millisecond(moment: datetime) -> None:
    moment = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    milliseconds = (moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000
    assert TopicPosition.parse(moment.isoformat()) == TopicPosition("time", round(milliseconds))
    assert TopicPosition.parse(f"@{round(milliseconds)}") == TopicPosition("time", round(milliseconds))


@pytest.mark.parametrize("text", ["", "-", "@", "1.5", "²", "--3", "2026-13-01", "tomorrow"])
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(Exception, match="is not a position"):
        TopicPosition.parse(text)
