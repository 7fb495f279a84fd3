"""The services of a home folder: started once, found again, revived, and stopped by the last who leaves."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from confluent_kafka.admin import AdminClient

from headrace import ServiceError, TableError
from headrace.services import Addresses, Home, Services


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    services = Services(tmp_path / "home")
    services.home.make()
    # Not the usual port, which others may want while a test has stopped its broker.
    services.home.write({"broker": {"address": f"127.0.0.1:{free_port()}"}})
    try:
        yield services
    finally:
        for status in services.status():
            if status.pid is not None:
                psutil.Process(status.pid).kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(address: str) -> bool:
    return AdminClient({"bootstrap.servers": address}).list_topics(timeout=10).brokers != {}


def pids(services: Services) -> dict[str, int | None]:
    return {status.name: status.pid for status in services.status()}


def wait_until(condition: object, seconds: float = 30) -> None:
    limit = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < limit, "it did not come about"
        time.sleep(0.05)


def test_up_twice_status_down_twice(services: Services) -> None:
    assert pids(services) == {"broker": None, "postgres": None, "delays": None}
    assert services.addresses() == Addresses(None, None)
    first = services.up()
    assert first.kafka is not None
    assert first.postgres is not None
    assert answers(first.kafka)
    psycopg.connect(first.postgres).close()
    before = pids(services)
    assert services.up() == first
    assert pids(services) == before
    for status in services.status():
        assert status.memory
        assert status.log.exists()
        assert status.started_at is not None
        assert abs(status.started_at - time.time()) < 120
    assert services.down() == ["broker", "postgres", "delays"]
    assert services.down() == []
    assert pids(services) == {"broker": None, "postgres": None, "delays": None}
    assert services.up() == first
    services.down()


def test_what_a_run_started_ends_with_it_and_starts_only_what_it_needs(services: Services) -> None:
    with services.used(kafka=True, postgres=False) as addresses:
        assert addresses.kafka is not None
        assert addresses.postgres is None
        assert answers(addresses.kafka)
    assert pids(services) == {"broker": None, "postgres": None, "delays": None}


def test_what_a_run_started_ends_with_it_when_it_fails(services: Services) -> None:
    with pytest.raises(ZeroDivisionError), services.used(kafka=True, postgres=False):
        raise ZeroDivisionError
    assert pids(services) == {"broker": None, "postgres": None, "delays": None}


def test_a_start_that_fails_half_way_leaves_nothing_running(services: Services) -> None:
    (services.home.path / "postgres").write_text("in the way")
    with pytest.raises(TableError), services.used(kafka=True, postgres=True):
        pass
    assert pids(services) == {"broker": None, "postgres": None, "delays": None}


def test_up_that_fails_half_way_stops_what_it_started_and_nothing_else(services: Services) -> None:
    (services.home.path / "postgres").write_text("in the way")
    with pytest.raises(TableError):
        services.up()
    assert pids(services) == {"broker": None, "postgres": None, "delays": None}
    with services.used(kafka=True, postgres=False):
        before = pids(services)
        assert before["broker"] is not None
        with pytest.raises(TableError):
            services.up()
        assert pids(services) == before
    assert pids(services) == {"broker": None, "postgres": None, "delays": None}


def test_what_is_up_stays_up_when_a_run_ends(services: Services) -> None:
    services.up()
    before = pids(services)
    with services.used(kafka=True, postgres=True):
        assert pids(services) == before
        with pytest.raises(ServiceError, match="a running app uses the services"):
            services.down()
    assert pids(services) == before
    services.down()


def test_the_last_of_two_runs_stops_them(services: Services) -> None:
    with services.used(kafka=True, postgres=False):
        with services.used(kafka=True, postgres=True):
            both = pids(services)
            assert both["broker"] is not None
            assert both["postgres"] is not None
        assert pids(services) == both
    assert pids(services) == {"broker": None, "postgres": None, "delays": None}


def test_services_of_a_run_that_was_killed_are_taken_over(services: Services) -> None:
    script = (
        "import sys, time, pathlib; from headrace.services import Services\n"
        "with Services(pathlib.Path(sys.argv[1])).used(kafka=True, postgres=False): print('ready', flush=True); "
        "time.sleep(600)"
    )
    run = subprocess.Popen([sys.executable, "-c", script, str(services.home.path)], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    assert run.stdout.readline() == "ready\n"
    run.kill()
    run.wait()
    run.stdout.close()
    before = pids(services)
    assert before["broker"] is not None
    with services.used(kafka=True, postgres=False):
        assert pids(services) == before
    assert pids(services) == {"broker": None, "postgres": None, "delays": None}


def test_a_broker_that_nobody_noted_is_found_and_replaced(services: Services) -> None:
    """Whoever started it was killed before it could write the address down."""
    services.up()
    orphan, delays = pids(services)["broker"], pids(services)["delays"]
    services.home.write({})
    assert pids(services)["broker"] is None
    assert services.up().kafka is not None
    assert orphan is not None
    assert not psutil.pid_exists(orphan) or psutil.Process(orphan).status() == psutil.STATUS_ZOMBIE
    assert pids(services)["broker"] not in (None, orphan)
    services.down()
    assert delays is not None
    psutil.Process(delays).kill()  # nobody knows of it any more: it would look for its broker for ever


def test_a_service_that_dies_is_started_again_at_its_address(services: Services) -> None:
    told: list[str] = []
    with services.used(kafka=True, postgres=True, notice=told.append) as addresses:
        before = pids(services)
        for name in ("broker", "postgres"):
            pid = before[name]
            assert pid is not None
            psutil.Process(pid).kill()
        wait_until(lambda: len(told) >= 2)
        assert services.addresses() == addresses
        assert set(told) == {
            "the embedded broker died and was restarted",
            "the embedded postgres died and was restarted",
        }
        assert not {before["broker"], before["postgres"]} & set(pids(services).values())
        assert addresses.kafka is not None
        assert answers(addresses.kafka)
    assert pids(services) == {"broker": None, "postgres": None, "delays": None}


def test_an_address_that_is_taken_meanwhile_is_given_up(services: Services) -> None:
    first = services.up().kafka
    assert first is not None
    services.down()
    with socket.socket() as taker:
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taker.bind(("127.0.0.1", int(first.rpartition(":")[2])))
        taker.listen()
        second = services.up().kafka
    assert second is not None
    assert second != first
    assert answers(second)
    services.down()


def test_a_process_that_has_the_number_of_a_dead_broker_is_left_alone(services: Services) -> None:
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        services.home.write({"broker": {"pid": stranger.pid, "address": "127.0.0.1:1"}})
        assert services.addresses().kafka is None
        assert services.down() == []
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize("noted", ["", "nonsense", "[]", '{"broker": 1}', '{"broker": {}}'])
def test_notes_that_cannot_be_read_are_no_notes(services: Services, noted: str) -> None:
    (services.home.path / "services.json").write_text(noted)
    assert services.addresses() == Addresses(None, None)


def test_a_broker_that_cannot_start_says_why(services: Services) -> None:
    (services.home.path / "broker").write_text("in the way")
    with pytest.raises(ServiceError, match=r"the broker did not start: .*cannot be used.*; see .*broker\.log"):
        services.up()
    assert pids(services) == {"broker": None, "postgres": None, "delays": None}


def test_a_home_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ServiceError, match=r"cannot be used: not a directory; choose one with --home"):
        Services(tmp_path / "file" / "home").up()


def test_an_app_runs_once_in_a_home(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with home.running("fraud"):
        with pytest.raises(ServiceError, match="'fraud' is running already"), Home(tmp_path).running("fraud"):
            pass
        with home.running("pricing"):
            pass
    with home.running("fraud"):
        pass
    assert (tmp_path / ".gitignore").read_text() == "*\n"
