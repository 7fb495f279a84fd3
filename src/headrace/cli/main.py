"""The command line: its commands, and how errors become a message and an exit code."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from headrace import Error, TopologyError, __version__
from headrace.cli import (
    broker,
    capture,
    check,
    consume,
    delays,
    doctor,
    graph,
    groups,
    produce,
    queues,
    services,
    topics,
    work,
)
from headrace.cli import run as run_app

INTERRUPTED = 130

app = typer.Typer(
    name="headrace",
    help="Event streams end to end: run functions that read topics and write topics and tables.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run_app.run)
app.command("work")(work.run)
app.command("check")(check.run)
app.command("graph")(graph.run)
app.command("up")(services.up)
app.command("down")(services.down)
app.command("status")(services.status)
app.command("capture")(capture.run)
app.command("broker")(broker.run)
app.add_typer(topics.app, name="topics")
app.command("produce")(produce.run)
app.command("consume")(consume.run)
app.add_typer(groups.app, name="groups")
app.add_typer(queues.app, name="queues")
app.command("delays")(delays.run)
app.command("doctor")(doctor.run)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"headrace {__version__}")
        raise typer.Exit


@app.callback()
def _headrace(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    pass


def main() -> None:
    """What the shell calls."""
    sys.exit(run(sys.argv[1:]))


def run(words: Sequence[str]) -> int:
    """Run the command. An error is printed as one line on stderr, or one for each problem, with an exit code."""
    try:
        code = app(words, prog_name="headrace", standalone_mode=False)
        sys.stdout.flush()
    except TopologyError as error:
        # One line each, so that an editor finds its way to file and line.
        for problem in error.problems:
            print(problem, file=sys.stderr)
        count = len(error.problems)
        return _fail(f"{count} {'problem' if count == 1 else 'problems'} found", 1)
    except Error as error:
        return _fail(str(error), 1)
    except typer.Abort:
        return _fail("cancelled", 1)
    except typer.TyperException as error:
        return _usage(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader went away, as `| head` does. Python flushes stdout once more at exit: let that succeed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code if isinstance(code, int) else 0


def _usage(error: typer.TyperException) -> int:
    context = getattr(error, "ctx", None)
    message = error.format_message().strip().rstrip(".").replace("Value error, ", "")
    if "\n" in message:  # no mistake but a group of commands named alone, whose message is its help
        print(message, file=sys.stderr)
        return error.exit_code
    command = context.command_path if context else "headrace"
    return _fail(f"{message[:1].lower()}{message[1:]}; see: {command} --help", error.exit_code)


def _fail(message: str, code: int) -> int:
    print("headrace: " + " ".join(message.split()), file=sys.stderr)
    return code
