"""`headrace up`, `status` and `down`, as a person types them."""

import contextlib
import json
import socket

import psycopg

from tests.conftest import Headrace


def test_up_status_and_down(headrace_alone: Headrace) -> None:
    assert "broker    down" in headrace_alone.ok("status")
    assert headrace_alone.ok("down") == "nothing was running\n"
    assert not (headrace_alone.folder / ".headrace").exists()
    try:
        first = headrace_alone.ok("up")
        kafka, postgres, delays = (line.split(maxsplit=1)[1] for line in first.splitlines())
        assert delays == "up"
        assert "kept" in headrace_alone.ok("topics", "create", "kept", "--kafka", kafka)
        with psycopg.connect(postgres) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        assert headrace_alone.ok("up") == first
        broker, database, service = json.loads(headrace_alone.ok("status", "--json"))
        assert (service["service"], service["running"]) == ("delays", True)
        assert (broker["service"], broker["address"], broker["running"]) == ("broker", kafka, True)
        assert (database["service"], database["address"], database["running"]) == ("postgres", postgres, True)
        assert "up " in headrace_alone.ok("status")
        assert ".headrace" in headrace_alone.ok("status")
    finally:
        assert headrace_alone.ok("down") == "stopped broker, postgres, delays\n"
    assert [one["pid"] for one in json.loads(headrace_alone.ok("status", "--json"))] == [None, None, None]
    assert headrace_alone.ok("down") == "nothing was running\n"


def test_a_home_elsewhere(headrace_alone: Headrace) -> None:
    assert str(headrace_alone.folder / "elsewhere" / "logs") in headrace_alone.ok("status", "--home", "elsewhere")
    (headrace_alone.folder / "headrace.toml").write_text('home = "by-file"\n')
    assert str(headrace_alone.folder / "by-file" / "logs") in headrace_alone.ok("status")
    (headrace_alone.folder / "file").write_text("")
    assert "choose one with --home" in headrace_alone.fails("up", "--home", "file/home")


def test_a_port_that_is_taken_is_told_with_the_one_used_instead(headrace_alone: Headrace) -> None:
    with contextlib.ExitStack() as stack:
        wanted = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
        with contextlib.suppress(OSError):  # whoever has the usual port, it is taken
            stack.enter_context(socket.create_server(("127.0.0.1", 9092)))
        home = headrace_alone.folder / ".headrace"
        home.mkdir()
        (home / "services.json").write_text(json.dumps({"broker": {"address": f"127.0.0.1:{wanted}"}}))
        done = headrace_alone("up")
    try:
        assert done.returncode == 0
        address = done.stdout.split()[1]
        assert done.stderr == f"ports {wanted} and 9092 are in use by other programs; the broker uses {address}\n"
        assert headrace_alone("up").stderr == ""
    finally:
        headrace_alone.ok("down")
