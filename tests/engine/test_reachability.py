"""Whether anything listens at an address: told soon where nothing does, and not where a broker is about to."""

import socket
import threading
import time

import pytest

from headrace import InputError, Unreachable
from headrace.config.reachability import RESTART_SECONDS, addresses_of, check_reachable
from tests.peers import free_port


def test_one_that_listens_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_reachable(f"127.0.0.1:1,127.0.0.1:{server.getsockname()[1]}")


def test_a_refusal_by_all_is_told_soon_and_with_all_reasons() -> None:
    began = time.monotonic()
    with pytest.raises(
        Unreachable, match=r"at 127\.0\.0\.1:1,127\.0\.0\.1:2 \(connection refused\); check the host name"
    ):
        check_reachable("127.0.0.1:1,127.0.0.1:2", RESTART_SECONDS)
    assert RESTART_SECONDS <= time.monotonic() - began < RESTART_SECONDS + 1
    with pytest.raises(Unreachable, match=r"headrace broker --data ./log --listen 127\.0\.0\.1:1, or .* with kafka="):
        check_reachable("127.0.0.1:1", option="kafka=")


def test_a_broker_that_is_just_starting_is_waited_for() -> None:
    port = free_port()
    listening: list[socket.socket] = []
    timer = threading.Timer(0.5, lambda: listening.append(socket.create_server(("127.0.0.1", port))))
    timer.start()
    try:
        with pytest.raises(Unreachable):
            check_reachable(f"127.0.0.1:{port}")
        check_reachable(f"127.0.0.1:{port}", seconds=30)
    finally:
        timer.join()
        listening[0].close()


def test_addresses() -> None:
    assert addresses_of("k1:9092, k2:9093") == [("k1", 9092), ("k2", 9093)]
    assert addresses_of("[::1]:9092") == [("::1", 9092)]
    assert addresses_of("SSL://k1:9092") == [("k1", 9092)]
    for text in ("k1", "k1:", ":9092", "k1:x", "k1:99999", "k1:9092,"):
        with pytest.raises(InputError, match="is not an address; write HOST:PORT"):
            addresses_of(text)
