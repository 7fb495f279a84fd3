"""`headrace check`: everything that is wrong with an app, before anything runs."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from headrace import TopologyError
from headrace.cli.apps import AppName, ConfigFile, File, SparkMaster, load_config
from headrace.cli.options import Json
from headrace.cli.output import print_json, print_table

if TYPE_CHECKING:
    from headrace.config import RunConfig
    from headrace.topology import App


def run(
    file: File,
    plan: Annotated[
        bool, typer.Option("--plan", help="Check the functions too: Spark analyses what they return.")
    ] = False,
    app: AppName = None,
    spark: SparkMaster = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Find all problems of an app, with file and line."""
    from headrace.topology import load_app

    try:
        found = load_app(file, app)
        topology = found.topology()
        planned = _columns(found, load_config(file=config, spark=spark)) if plan else {}
    except TopologyError as error:
        if not json:
            raise
        print_json({"ok": False, "problems": [asdict(problem) for problem in error.problems]})
        return 1
    if json:
        print_json({"ok": True, "problems": [], "columns": planned})
        return 0
    if planned:
        print_table(["node", "columns"], list(planned.items()))
    queries = len(topology.queries) + len(topology.workers)
    nodes = f"{queries} {'node' if queries == 1 else 'nodes'}"
    if plan:
        print(f"{topology.app_name}: no problems found in the declarations and functions of {nodes}")
    else:
        print(
            f"{topology.app_name}: no problems found in the declarations of {nodes}; "
            f"check the functions too: headrace check {file} --plan"
        )
    return 0


def _columns(app: "App", config: "RunConfig") -> dict[str, str]:
    """The columns of every node, or of each of its channels."""
    from headrace.cli.planning import planned

    with planned(app, config) as queries:
        return {
            f"{query.node.name}.{channel}".rstrip("."): schema.ddl
            for query in queries
            for channel, schema in query.output_schemas.items()
        }
