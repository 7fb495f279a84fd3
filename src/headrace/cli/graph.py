"""`headrace graph`: the app as a drawing."""

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.apps import AppName, ConfigFile, File, SparkMaster, load_config
from headrace.cli.output import print_table

if TYPE_CHECKING:
    from headrace.engine import PlannedQuery


def run(
    file: File,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print a Mermaid flowchart, for Markdown pages.")] = False,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Show for each node whether Spark or Headrace computes it, and why."),
    ] = False,
    app: AppName = None,
    spark: SparkMaster = None,
    config: ConfigFile = None,
) -> None:
    """Draw the graph of an app."""
    from headrace.cli.planning import planned
    from headrace.topology import as_mermaid, as_text, load_app

    found = load_app(file, app)
    topology = found.topology()
    print(as_mermaid(topology) if mermaid else as_text(topology), end="")
    if explain:
        with planned(found, load_config(file=config, spark=spark)) as queries:
            lines = [(query.node.name, line) for query in queries for line in _explained(query)]
        print()
        print_table(["node", "computed by"], lines)


def _explained(query: "PlannedQuery") -> list[str]:
    if query.explained:
        return list(query.explained)
    kept = [operator.partition(":")[0] for operator in query.fingerprint.get("operators", ())]
    return [f"Spark: {kind}" for kind in kept] or ["Spark: row by row, without state"]
