"""`headrace graph`: the app as a drawing."""

from typing import Annotated

import typer

from headrace.cli.apps import AppName, File


def run(
    file: File,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="As a Mermaid flowchart, for Markdown pages.")] = False,
    app: AppName = None,
) -> None:
    """Draw what feeds what."""
    from headrace.topology import as_mermaid, as_text, load_app

    topology = load_app(file, app).topology()
    print(as_mermaid(topology) if mermaid else as_text(topology), end="")
