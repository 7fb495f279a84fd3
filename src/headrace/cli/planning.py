"""An app as Spark analyses it, without anything that runs."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from headrace.cli.options import DEFAULT_KAFKA

if TYPE_CHECKING:
    from headrace.engine.config import RunConfig
    from headrace.engine.plan import PlannedQuery
    from headrace.topology import App

__all__ = ["planned"]


@contextmanager
def planned(app: "App", config: "RunConfig") -> "Iterator[list[PlannedQuery]]":
    """The queries of an app, in a session that ends with them. Spark needs an address of Kafka, but asks nobody."""
    from headrace.engine.plan import plan
    from headrace.engine.session import LOCAL, start_session

    with TemporaryDirectory(prefix="headrace-") as folder, ExitStack() as stack:
        home = Path(folder)
        session = start_session(
            app.name,
            home=home,
            master=config.spark or LOCAL,
            state=app.state,
            partitions=config.state_partitions,
            settings=config.spark_settings,
        )
        stack.callback(session.stop)
        yield plan(app.topology(), session, replace(config, kafka=config.kafka or DEFAULT_KAFKA, home=home))
