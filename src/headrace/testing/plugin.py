"""Fixtures for pytest, available as soon as Headrace is installed. They start nothing until a test uses them."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headrace.testing import Environment, Harness
    from headrace.topology import App, Node

__all__ = ["headrace_environment", "headrace_harness"]


@pytest.fixture(scope="session")
def headrace_environment(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Environment]":
    """Spark, a broker and PostgreSQL for all tests of the session; each is started when it is first needed."""
    from headrace.testing import Environment

    with Environment(tmp_path_factory.mktemp("headrace")) as environment:
        yield environment


@pytest.fixture
def headrace_harness(headrace_environment: "Environment") -> "Iterator[Callable[..., Harness]]":
    """Makes harnesses: `harness = headrace_harness(app)`. They are closed at the end of the test."""
    from headrace.testing import Harness

    made: list[Harness] = []

    def make(
        app: "App",
        *,
        nodes: "Iterable[Node | str] | None" = None,
        upstreams: bool = True,
        partitions: int = 1,
    ) -> Harness:
        made.append(
            Harness(app, nodes=nodes, upstreams=upstreams, environment=headrace_environment, partitions=partitions)
        )
        return made[-1]

    yield make
    for harness in made:
        harness.close()
