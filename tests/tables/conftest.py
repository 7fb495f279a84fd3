"""A schema of each test's own in the shared PostgreSQL."""

import uuid
from collections.abc import Callable, Iterator

import pytest

from headrace.tables import ViewReader, ViewWriter
from headrace.topology import Schema

MakeWriter = Callable[..., ViewWriter]
MakeReader = Callable[..., ViewReader]


@pytest.fixture
def schema_name() -> str:
    return f"app_{uuid.uuid4().hex[:12]}"


@pytest.fixture
def writer_of(postgres_dsn: str, schema_name: str) -> Iterator[MakeWriter]:
    """Makes prepared writers of one view, each of which takes it over from the one before."""
    made: list[ViewWriter] = []

    def make(
        columns: str = "k STRING, v BIGINT",
        key: tuple[str, ...] = ("k",),
        prepare: bool = True,
        order_by: tuple[str, ...] = (),
    ) -> ViewWriter:
        writer = ViewWriter(postgres_dsn, schema_name, "spend", Schema.of(columns), key, order_by)
        made.append(writer)
        if prepare:
            writer.prepare()
        return writer

    yield make
    for writer in made:
        writer.close()


@pytest.fixture
def reader_of(postgres_dsn: str, schema_name: str) -> Iterator[MakeReader]:
    made: list[ViewReader] = []

    def make(key: tuple[str, ...] = ("k",)) -> ViewReader:
        made.append(ViewReader(postgres_dsn, schema_name, "spend", key))
        return made[-1]

    yield make
    for reader in made:
        reader.close()
