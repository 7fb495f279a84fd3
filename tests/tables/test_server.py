"""The embedded server: it starts by itself, keeps what was committed, and gives way to nobody by mistake."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from headrace import PostgresUnavailable, TableError
from headrace.tables import EmbeddedPostgres, check_postgres, shown


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    # Deep enough that a socket's path would not fit.
    folder = tmp_path_factory.mktemp("deep") / ("x" * 100)
    server = EmbeddedPostgres(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def test_it_is_durable_on_loopback_and_ready_for_logical_replication(server: EmbeddedPostgres) -> None:
    with psycopg.connect(server.start()) as connection:
        found = {
            name: connection.execute(f"SHOW {name}").fetchone()
            for name in ("wal_level", "fsync", "synchronous_commit", "listen_addresses", "timezone", "data_checksums")
        }
        connection.rollback()
        connection.execute("SELECT pg_create_logical_replication_slot('ready', 'pgoutput')")
        connection.execute("SELECT pg_drop_replication_slot('ready')")
    assert found == {
        "wal_level": ("logical",),
        "fsync": ("on",),
        "synchronous_commit": ("on",),
        "listen_addresses": ("127.0.0.1",),
        "timezone": ("UTC",),
        "data_checksums": ("on",),
    }


def test_only_who_can_read_its_folder_gets_in(server: EmbeddedPostgres) -> None:
    assert (server.folder / "pgpass").stat().st_mode & 0o077 == 0
    assert (server.folder / "pgpass").read_text().split(":")[-1].strip() not in server.dsn
    stranger = server.dsn.partition("?")[0]
    with pytest.raises(TableError, match=r"rejected the connection.*correct --postgres"):
        check_postgres(stranger + "?passfile=/nonexistent")


def test_it_goes_on_when_its_starter_ends_and_is_found_again(tmp_path: Path) -> None:
    script = "import sys, pathlib; from headrace.tables import EmbeddedPostgres as E; "
    start = [sys.executable, "-c", script + "E(pathlib.Path(sys.argv[1])).start()", str(tmp_path)]
    subprocess.run(start, check=True, timeout=60)
    server = EmbeddedPostgres(tmp_path)
    first = server.process
    assert first is not None
    try:
        subprocess.run(start, check=True, timeout=60)
        assert server.process == first
        assert check_postgres(server.dsn).startswith("18")
    finally:
        server.stop()
    assert server.process is None
    server.stop()


def kill(process: psutil.Process) -> None:
    process.kill()
    psutil.wait_procs([process], timeout=30)


def test_kill_9_loses_nothing_that_was_committed(server: EmbeddedPostgres) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept (n int)")
        connection.execute("INSERT INTO kept VALUES (0)")
        process = server.process
        assert process is not None
        kill(process)
    before = server.dsn
    assert server.start() == before
    with psycopg.connect(server.dsn) as connection:
        assert connection.execute("SELECT n FROM kept").fetchall() == [(0,)]
        connection.execute("DROP TABLE kept")


def test_a_process_that_has_the_number_of_the_dead_server_is_not_taken_for_it(server: EmbeddedPostgres) -> None:
    process = server.process
    assert process is not None
    kill(process)
    # As after a restart of the machine, or of a container: the number now belongs to somebody else.
    stranger = subprocess.Popen(["sleep", "600"], user="postgres" if os.geteuid() == 0 and _has_postgres() else None)
    try:
        file = server.data / "postmaster.pid"
        lines = file.read_text().splitlines()
        file.write_text("\n".join([str(stranger.pid), *lines[1:], ""]))
        assert server.process is None
        server.start()
        assert stranger.poll() is None
        assert check_postgres(server.dsn)
    finally:
        stranger.kill()
        stranger.wait()


def _has_postgres() -> bool:
    import pwd

    return any(user.pw_name == "postgres" for user in pwd.getpwall())


def test_a_port_that_is_taken_meanwhile_is_given_up(server: EmbeddedPostgres) -> None:
    before = server.dsn
    server.stop()
    port = int(before.partition("@127.0.0.1:")[2].partition("/")[0])
    with socket.socket() as taker:
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taker.bind(("127.0.0.1", port))
        taker.listen()
        after = server.start()
    assert after != before
    assert check_postgres(after)
    server.stop()
    assert server.start() == after


def test_a_cluster_cut_off_in_the_making_is_made_anew(tmp_path: Path) -> None:
    unfinished = tmp_path / "data.unfinished"
    unfinished.mkdir()
    (unfinished / "PG_VERSION").write_text("18\n")
    server = EmbeddedPostgres(tmp_path)
    try:
        assert check_postgres(server.start())
        assert not unfinished.exists()
    finally:
        server.stop()


def test_data_of_a_version_that_is_not_here_is_told(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "PG_VERSION").write_text("9\n")
    with pytest.raises(TableError, match=r"created by PostgreSQL 9, and the installed wheel has .*18"):
        EmbeddedPostgres(tmp_path).start()


def test_a_folder_that_cannot_be_used_and_a_cluster_that_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TableError, match=r"cannot use .*--home"):
        EmbeddedPostgres(tmp_path / "file" / "home").start()
    damaged = tmp_path / "damaged"
    server = EmbeddedPostgres(damaged)
    server.start()
    server.stop()
    (server.data / "global" / "pg_control").unlink()
    with pytest.raises(TableError, match=r"PostgreSQL did not start: .*; see "):
        server.start()


def test_nobody_at_the_address_and_an_address_that_is_none() -> None:
    from headrace import InputError

    started = time.monotonic()
    with pytest.raises(
        PostgresUnavailable, match=r"at 127.0.0.1:1/x is unavailable.*[Cc]onnection refused.*--postgres"
    ) as refused:
        check_postgres("postgresql://me:secret@127.0.0.1:1/x")
    assert "secret" not in str(refused.value)
    assert time.monotonic() - started < 5
    with pytest.raises(InputError, match="is invalid"):
        check_postgres("mysql://nowhere")
    assert shown("postgresql://me:secret@db.example/x") == "db.example:5432/x"
