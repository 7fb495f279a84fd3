"""`headrace capture`: the captured tables of an app without Spark; their status; and their end."""

from dataclasses import asdict, replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.apps import AppName, ConfigFile, HomeFolder, KafkaAddress, KafkaSet, PostgresDsn, load_config
from headrace.cli.live import Display
from headrace.cli.options import Json, Yes, check_address
from headrace.cli.output import ask, print_json, print_table
from headrace.threads import stopped_by_signals

if TYPE_CHECKING:
    from headrace.capture import Task
    from headrace.config import RunConfig
    from headrace.topology import Topology

STATUS, DROP = "status", "drop"
AGAIN = "again"


def run(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[status|drop] FILE",
            help="The Python file that declares the app; before it, `status` shows the slots, `drop` removes them.",
            show_default=False,
        ),
    ],
    app: AppName = None,
    kafka: KafkaAddress = None,
    kafka_set: KafkaSet = None,
    postgres: PostgresDsn = None,
    home: HomeFolder = None,
    config: ConfigFile = None,
    snapshot: Annotated[
        list[str] | None,
        typer.Option(
            "--snapshot",
            metavar="initial|never|again[=TABLE]",
            help="For new tables, whether their rows are read first; `again` empties the topic and reads them again.",
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0.1, help="Stop after this many seconds.", show_default=False)
    ] = None,
    json: Json = False,
    yes: Yes = False,
) -> int:
    """Capture the tables of an app into topics, without Spark."""
    check_address(kafka)
    command, file = _split(words)
    settings = load_config(file=config, home=home, kafka=kafka, kafka_set=kafka_set, postgres=postgres)
    from headrace.topology import load_app

    topology = load_app(file, app).topology()
    if not any(node.is_captured for node in topology.nodes.values()):
        raise typer.BadParameter(f"{file} captures no table: declare one with app.capture()", param_hint="FILE")
    mode, again = _snapshots(snapshot or [], topology)
    if command == STATUS:
        return _status(_found(topology, settings), settings, json)
    if command == DROP:
        return _drop(_found(topology, settings), settings, yes)
    return _run(topology, settings, mode, again, seconds)


def _split(words: list[str]) -> tuple[str | None, Path]:
    if len(words) == 1 and words[0] not in (STATUS, DROP):
        return None, Path(words[0])
    if len(words) == 2 and words[0] in (STATUS, DROP):
        return words[0], Path(words[1])
    raise typer.BadParameter("give a file, or status or drop and a file", param_hint="FILE")


def _snapshots(given: list[str], topology: "Topology") -> tuple[str | None, list[str] | None]:
    """The mode for new tables, and the tables that are read again; an empty list means all of them."""
    from headrace.topology import captured_databases

    known = [str(one.table) for captures in captured_databases(topology.nodes.values()).values() for one in captures]
    mode: str | None = None
    again: list[str] | None = None
    for word in given:
        name, _, table = word.partition("=")
        if name == AGAIN and (not table or table in known):
            again = [*(again or []), *([table] if table else known)]
        elif name in ("initial", "never") and not table:
            mode = name
        else:
            problem = f"{table!r} is not captured" if name == AGAIN else f"{word!r} is unknown"
            raise typer.BadParameter(f"{problem}; the tables are: {', '.join(known)}", param_hint="--snapshot")
    return mode, again


def _run(
    topology: "Topology", config: "RunConfig", mode: str | None, again: list[str] | None, seconds: float | None
) -> int:
    from headrace.capture import tasks_of
    from headrace.services import Services, capture_child, needs_of, processes_of
    from headrace.threads import Threads

    display = Display()
    threads = Threads(config.home.absolute() / "logs" / "capture.log")
    needs = needs_of(topology, config)
    services = Services(config.home).used(
        kafka=needs.kafka, postgres=needs.postgres, notice=display.remark, threads=threads
    )
    stopped = Event()
    with stopped_by_signals(stopped.set), services as found:
        config = replace(config, kafka=config.kafka or found.kafka, postgres=config.postgres or found.postgres)
        tasks = tasks_of(topology, config, snapshot=mode, again=again)
        processes = processes_of(config, threads, display.remark)
        for task in tasks:
            topics = ", ".join(one.topic for one in task.tables)
            display.remark(f"capturing {task.shown} into {topics} at {config.kafka_address}; Ctrl-C stops it")
        with (
            processes.running([capture_child(task) for task in tasks]),
            display.showing(list, processes.status, threads),
        ):
            waited = 0.0
            while threads.failure is None and not stopped.wait(0.1) and (seconds is None or waited < seconds):
                waited += 0.1
    threads.check()
    return 0


def _found(topology: "Topology", config: "RunConfig") -> "list[Task]":
    """The tasks with the addresses of what runs; nothing is started."""
    from headrace.capture import tasks_of
    from headrace.services import needs_of, with_kafka, with_postgres

    config = with_kafka(config, "--kafka")
    if needs_of(topology, config).postgres:
        config = with_postgres(config, "--postgres")
    return tasks_of(topology, config)


def _status(tasks: "list[Task]", config: "RunConfig", json: bool) -> int:
    from headrace.capture import slot_status
    from headrace.services import find_cluster

    found = [slot_status(task, find_cluster(task.config)) for task in tasks]
    if json:
        print_json([asdict(one) for one in found])
        return 0
    print_table(
        ["table", "state", "slot", "read by", "lag", "retained", "log"],
        [
            (
                table,
                state if one.exists else "no slot",
                one.slot,
                "a process" if one.is_active else "nobody",
                None if one.behind is None else f"{one.behind:,} B",
                None if one.retained is None else f"{one.retained:,} B",
                one.wal_status,
            )
            for one in found
            for table, state in one.tables.items()
        ],
    )
    return 0


def _drop(tasks: "list[Task]", config: "RunConfig", yes: bool) -> int:
    from headrace.capture import drop_capture
    from headrace.services import find_cluster

    for task in tasks:
        question = (
            f"drop the slot {task.slot} and the publication {task.publication} of {task.shown}? The topics stay; the "
            "next start reads all tables again"
        )
        if not yes:
            ask(question)
        dropped = drop_capture(task, find_cluster(task.config))
        print(f"dropped {', '.join(dropped)}" if dropped else f"{task.shown} has nothing to drop")
    return 0
