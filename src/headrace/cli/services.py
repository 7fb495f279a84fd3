"""`headrace up`, `down` and `status`: the embedded services of a home folder."""

from datetime import datetime
from typing import TYPE_CHECKING

from headrace.cli.apps import ConfigFile, HomeFolder, load_config
from headrace.cli.options import Json
from headrace.cli.output import note, print_json, print_table

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.services import Services


def up(home: HomeFolder = None, config: ConfigFile = None) -> None:
    """Start the embedded broker, PostgreSQL and the delay service. They run until `headrace down`."""
    services = _services(home, config)
    services.up()
    for status in services.status():
        print(f"{status.name:<9} {status.address or 'up'}")


def down(home: HomeFolder = None, config: ConfigFile = None) -> None:
    """Stop the embedded broker, PostgreSQL and the delay service. Their data is kept."""
    stopped = _services(home, config).down()
    print(f"stopped {', '.join(stopped)}" if stopped else "nothing was running")


def status(home: HomeFolder = None, config: ConfigFile = None, json: Json = False) -> None:
    """Show which services run, where, and how much memory they use."""
    found = _services(home, config).status()
    if json:
        print_json(
            [
                {
                    "service": one.name,
                    "running": one.pid is not None,
                    "pid": one.pid,
                    "address": one.address,
                    "data": str(one.data),
                    "log": str(one.log),
                    "started_at": None if one.started_at is None else _time(one.started_at),
                    "memory_bytes": one.memory,
                }
                for one in found
            ]
        )
        return
    rows = [
        (
            one.name,
            "down" if one.pid is None else "up",
            one.address,
            one.pid,
            None if one.memory is None else f"{one.memory >> 20} MiB",
            None if one.started_at is None else _time(one.started_at),
            str(one.log),
        )
        for one in found
    ]
    print_table(["service", "state", "address", "pid", "memory", "since", "log"], rows)


def _services(home: "Path | None", config: "Path | None") -> "Services":
    from headrace.services import Services

    return Services(load_config(file=config, home=home).home, note)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")
