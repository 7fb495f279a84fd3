"""An app as Spark analyses it, without anything that runs."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from headrace.cli.output import note

if TYPE_CHECKING:
    from headrace.config import RunConfig
    from headrace.engine import Jar, PlannedQuery
    from headrace.topology import App

__all__ = ["planned"]


@contextmanager
def planned(app: "App", config: "RunConfig") -> "Iterator[list[PlannedQuery]]":
    """The queries of an app, in a session that ends with them. Spark needs Kafka's address, but does not connect.

    Each step is noted on stderr: it takes up to 20 s, more where jars are fetched.
    """
    from headrace.config import USUAL_ADDRESS
    from headrace.engine import LOCAL, plan_topology, start_session
    from headrace.services import with_captures_described

    topology = with_captures_described(app.topology(), config)
    with TemporaryDirectory(prefix="headrace-") as folder, ExitStack() as stack:
        home = Path(folder)
        note("starting Spark")
        session = start_session(
            app.name,
            home=home,
            master=config.spark or LOCAL,
            state=app.state,
            partitions=config.state_partitions,
            settings=config.spark_settings,
            progress=_note_fetch,
        )
        stack.callback(session.stop)
        note(f"analysing {', '.join(query.name for query in topology.queries)}")
        yield plan_topology(topology, session, replace(config, kafka=config.kafka or USUAL_ADDRESS, home=home))


def _note_fetch(jar: "Jar", there: int, wanted: int) -> None:
    note(f"fetching {jar}, {there + 1} of {wanted} (only the first time)")
