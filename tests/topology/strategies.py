"""Random types and schemas, for the property tests."""

from hypothesis import strategies as st

from headrace.topology.datatypes import Array, Column, DataType, Decimal, Map, Primitive, Struct, contains_map
from headrace.topology.schema import Schema

# Everything a name or a comment may hold, quotes and backslashes more often than not.
texts = st.text(
    st.one_of(st.sampled_from("`'\"\\ ,<>():-\n%_u0"), st.characters(exclude_categories=["Cs"])),
    max_size=12,
)
names = st.one_of(st.sampled_from(["id", "at", "not", "comment", "struct", "Ärger", "a b"]), texts.filter(bool))
comments = st.none() | texts
primitives = st.sampled_from(Primitive)
decimals = st.integers(1, 38).flatmap(lambda digits: st.builds(Decimal, st.just(digits), st.integers(0, digits)))


def column_tuples(types: st.SearchStrategy[DataType], max_size: int) -> st.SearchStrategy[tuple[Column, ...]]:
    columns = st.builds(Column, names, types, st.booleans(), comments)
    return st.lists(columns, min_size=1, max_size=max_size, unique_by=lambda column: column.name.casefold()).map(tuple)


def nested(types: st.SearchStrategy[DataType]) -> st.SearchStrategy[DataType]:
    keys = types.filter(lambda type_: not contains_map(type_))
    return st.one_of(
        st.builds(Array, types),
        st.builds(Map, keys, types),
        st.builds(Struct, column_tuples(types, 3)),
    )


data_types: st.SearchStrategy[DataType] = st.recursive(st.one_of(primitives, decimals), nested, max_leaves=6)
schemas: st.SearchStrategy[Schema] = st.builds(Schema, column_tuples(data_types, 5))
