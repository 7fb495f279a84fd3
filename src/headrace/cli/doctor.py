"""`headrace doctor`: checks that everything Headrace needs is installed, and says what to do if not."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import Json, Kafka, KafkaSettings, kafka_arguments
from headrace.cli.output import print_json

if TYPE_CHECKING:
    from headrace.services import Check


def run(
    data: Annotated[
        Path,
        typer.Option("--data", metavar="DIR", help="The folder whose disk to check. Default: this folder."),
    ] = Path("."),
    install_java: Annotated[
        bool,
        typer.Option(
            "--install-java",
            help="Unpack Java into the cache folder if no version 17 or newer is found; check Java only.",
        ),
    ] = False,
    json: Json = False,
    kafka: Kafka = None,
    kafka_set: KafkaSettings = None,
) -> int:
    """Check the machine, the installation and the Kafka address."""
    arguments = kafka_arguments(kafka, kafka_set)
    from headrace.services import check_all, check_java

    if install_java:
        from headrace.config import install_java as install

        install(lambda text: print(text, file=sys.stderr))
    checks = []
    for check in [check_java()] if install_java else check_all(data, arguments):
        checks.append(check)
        if not json:
            _print_check(check)
    problems = sum(not check.ok for check in checks)
    if json:
        print_json({"ok": not problems, "checks": [asdict(check) for check in checks]})
    else:
        print("no problems found" if not problems else f"{problems} of {len(checks)} checks found a problem")
    return 1 if problems else 0


def _print_check(check: "Check") -> None:
    from rich.console import Console
    from rich.text import Text

    from headrace.services import CHECK_NAMES

    width = max(map(len, CHECK_NAMES))
    text = Text()
    text.append("ok       " if check.ok else "problem  ", style="green" if check.ok else "bold red")
    text.append(f"{check.name:<{width}} ", style="bold")
    text.append(check.found)
    if check.next_step:
        text.append(f"\n{'':{width + 10}}→ {check.next_step}", style="yellow")
    Console(soft_wrap=True, highlight=False).print(text)
