"""Bytes that no client would send: an answer or a closed connection, never a crash, a leak or a stall of the others."""

import logging
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.broker.wire import codec
from headrace.broker.wire.apis import APIS
from tests.broker.faults.batches import encode
from tests.broker.faults.client import Client
from tests.broker.faults.harness import Running, serving
from tests.broker.kiobridge import bodies, entity_class
from tests.broker.rawclient import RawClient

# So many bytes are refused; small, so that the test can go beyond it.
LARGEST_FRAME = 200_000

fuzzing = settings(
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder: Path = tmp_path_factory.mktemp("fuzz")
    limits = {"socket.request.max.bytes": str(LARGEST_FRAME)}
    with serving(folder, settings=limits) as running:
        set_up(running)
        set_up_what_stays(running)
        yield running


def set_up(broker: Running) -> None:
    with Client(broker.address) as client:
        client.create_topic("there", 1)


def set_up_what_stays(broker: Running) -> None:
    """A topic that no request names."""
    with Client(broker.address) as client:
        client.create_topic("apart", 1)
        client.produce("apart", 0, encode([b"one"]))


def topics(broker: Running) -> dict[str, int]:
    with Client(broker.address, timeout=5.0) as client:
        return client.topics()


def still_serves(broker: Running) -> None:
    """Another client is served as ever, at once, and nothing was lost."""
    with Client(broker.address, timeout=5.0) as client:
        assert client.read("apart", 0).records == {0: b"one"}


def send(broker: Running, data: bytes) -> None:
    """Send bytes, hang up and wait until the broker has dealt with them: an answer, or a closed connection."""
    with RawClient(*broker.address, timeout=5.0) as raw:
        try:
            raw.send_bytes(data)
            raw.socket.shutdown(socket.SHUT_WR)
            while raw.socket.recv(65536):
                pass
        except ConnectionError:
            pass


@fuzzing
@given(data=st.binary(max_size=300))
def test_any_bytes(broker: Running, data: bytes) -> None:
    send(broker, data)
    still_serves(broker)


@fuzzing
@given(
    key=st.one_of(st.sampled_from(sorted(APIS)), st.integers(-(2**15), 2**15 - 1)),
    version=st.one_of(st.integers(0, 18), st.integers(-(2**15), 2**15 - 1)),
    body=st.binary(max_size=200),
)
def test_any_body_under_any_header(broker: Running, key: int, version: int, body: bytes) -> None:
    payload = struct.pack(">hhih", key, version, 7, 3) + b"bad" + body
    send(broker, struct.pack(">i", len(payload)) + payload)
    still_serves(broker)


def valid_requests() -> list[tuple[int, int, bytes]]:
    """A sound request of each API in its lowest and highest version, as far as empty bodies go."""
    found = []
    for api in APIS.values():
        for version in {api.min, api.max}:
            header = codec.request_header(api.key, version, 1, "fuzz")
            found.append((api.key, version, header + codec.write_request(api.key, version, {})))
    return found


@fuzzing
@given(data=st.data())
def test_sound_requests_cut_and_changed(broker: Running, data: st.DataObject) -> None:
    requests = valid_requests()
    _, _, payload = data.draw(st.sampled_from(requests))
    changed = bytearray(payload)
    for _ in range(data.draw(st.integers(0, 6))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(changed[: data.draw(st.integers(0, len(changed)))])
    send(broker, struct.pack(">i", len(cut)) + cut)
    still_serves(broker)


class Failures(logging.Handler):
    """Every exception the broker had to log: a request may be refused, but never surprise it."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.records.append(self.format(record))


@st.composite
def plausible(draw: st.DrawFn, value: Any, name: str = "") -> Any:
    """The same body with some of its values as they are in earnest, so that it gets beyond the first check."""
    if isinstance(value, dict):
        return {key: draw(plausible(each, key)) for key, each in value.items()}
    if isinstance(value, list):
        return [draw(plausible(each, name)) for each in value]
    if name in BOUNDED:
        return draw(st.integers(-1, 50))
    if isinstance(value, bool) or not draw(st.booleans()):
        return value
    if isinstance(value, str):
        return draw(st.sampled_from(["there", "group", "transaction", "retention.ms", "1000", value]))
    if isinstance(value, int):
        return draw(st.integers(-2, 3))
    if isinstance(value, bytes) and name == "records":
        return encode([b"fuzz"], *draw(st.sampled_from([(-1, -1, -1), (0, 0, 0), (5, 1, 3)])))
    return value


# Waits that the test would sit through, and numbers of partitions it would have to make.
BOUNDED = {
    *("max_wait", "timeout", "session_timeout", "rebalance_timeout", "transaction_timeout"),
    *("num_partitions", "count"),
}


def sound_request(broker: Running, data: st.DataObject) -> None:
    api = data.draw(st.sampled_from(sorted(APIS.values())))
    version = data.draw(st.integers(api.min, api.max))
    body = data.draw(bodies(entity_class(api.key, version, "request")).flatmap(plausible))
    failures = Failures()
    logging.getLogger("headrace").addHandler(failures)
    try:
        payload = codec.request_header(api.key, version, 1, "fuzz") + codec.write_request(api.key, version, body)
        send(broker, struct.pack(">i", len(payload)) + payload)
        if "there" not in topics(broker):  # it was deleted, as somebody asked
            set_up(broker)
        assert not failures.records, f"{api.name} {version} {body}: {failures.records[0]}"
    finally:
        logging.getLogger("headrace").removeHandler(failures)


@fuzzing
@given(data=st.data())
def test_sound_requests_of_any_content(broker: Running, data: st.DataObject) -> None:
    sound_request(broker, data)


@pytest.mark.long
@pytest.mark.timeout(900)
@settings(fuzzing, max_examples=5000)
@given(data=st.data())
def test_many_sound_requests_of_any_content(broker: Running, data: st.DataObject) -> None:
    sound_request(broker, data)


@fuzzing
@given(seed=st.integers(0, 2**32))
def test_produced_batches_damaged(broker: Running, seed: int) -> None:
    """Whatever becomes of a batch on the way, what is read back is sound."""
    dice = random.Random(seed)
    batch = bytearray(encode([b"some value", dice.randbytes(dice.randrange(50))]))
    for _ in range(dice.randint(1, 4)):
        batch[dice.randrange(len(batch))] ^= 1 << dice.randrange(8)
    cut = bytes(batch[: dice.choice([len(batch), dice.randrange(len(batch) + 1)])])
    data = {"name": "there", "partition_data": [{"index": 0, "records": cut}]}
    body = codec.write_request(0, 9, {"acks": -1, "timeout": 1000, "topic_data": [data]})
    payload = codec.request_header(0, 9, 1, "fuzz") + body
    send(broker, struct.pack(">i", len(payload)) + payload)
    still_serves(broker)


def test_frames_split_at_every_byte(broker: Running) -> None:
    payload = codec.request_header(18, 3, 9, "slow") + codec.write_request(
        18, 3, {"client_software_name": "a", "client_software_version": "b"}
    )
    frame = struct.pack(">i", len(payload)) + payload
    with RawClient(*broker.address) as raw:
        for cut in range(1, len(frame)):
            raw.send_bytes(frame[:cut])
            raw.send_bytes(frame[cut:] + frame)
            assert raw.recv_frame()[:4] == raw.recv_frame()[:4] == struct.pack(">i", 9)


@pytest.mark.parametrize("length", [-1, -(2**31), LARGEST_FRAME + 1, 2**31 - 1])
def test_impossible_lengths_close_the_connection(broker: Running, length: int) -> None:
    with RawClient(*broker.address) as raw:
        raw.send_bytes(struct.pack(">i", length))
        assert raw.closed_by_peer()
    still_serves(broker)


def test_huge_arrays_are_refused_without_memory(broker: Running) -> None:
    """A length of two thousand million in a body of twenty bytes."""
    for key, version in ((0, 3), (1, 4), (2, 1), (3, 1), (8, 2), (9, 1), (19, 2), (24, 0)):
        payload = codec.request_header(key, version, 1, "fuzz") + b"\x7f\xff\xff\xff" * 5
        send(broker, struct.pack(">i", len(payload)) + payload)
    still_serves(broker)


def test_those_who_send_half_a_frame_hold_nobody_up(broker: Running) -> None:
    stalled = [RawClient(*broker.address) for _ in range(50)]
    try:
        for number, raw in enumerate(stalled):
            raw.send_bytes(struct.pack(">i", 100_000)[: 1 + number % 4])
        for raw in stalled[:10]:
            raw.send_bytes(b"\0" * 10)
        started = time.monotonic()
        still_serves(broker)
        assert time.monotonic() - started < 2
    finally:
        for raw in stalled:
            raw.close()


def test_connections_reset_in_the_middle_of_an_answer(broker: Running) -> None:
    def reset() -> None:
        for _ in range(20):
            raw = RawClient(*broker.address)
            raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            for _ in range(5):
                raw.send(3, 9, {"topics": None})
            raw.close()

    threads = [threading.Thread(target=reset) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    still_serves(broker)


def test_nothing_is_left_of_all_that(broker: Running) -> None:
    """Once every connection is closed, so are the broker's ends of them."""
    deadline = time.monotonic() + 10
    while broker.open_connections() > 0:
        assert time.monotonic() < deadline, f"{broker.open_connections()} connections are still open"
        time.sleep(0.05)
    still_serves(broker)
