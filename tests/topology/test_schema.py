import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from headrace.errors import InputError
from headrace.topology import Schema
from headrace.topology.datatypes import Array, Column, DataType, Decimal, Map, Primitive, Struct
from headrace.topology.ddl import parse_type
from tests.topology.strategies import data_types, schemas


@pytest.mark.parametrize(
    ("ddl", "expected"),
    [
        ("BOOLEAN", Primitive.BOOLEAN),
        ("byte", Primitive.TINYINT),
        ("tinyint", Primitive.TINYINT),
        ("Short", Primitive.SMALLINT),
        ("integer", Primitive.INT),
        ("long", Primitive.BIGINT),
        ("real", Primitive.FLOAT),
        ("double", Primitive.DOUBLE),
        ("timestamp_ltz", Primitive.TIMESTAMP),
        ("timestamp_ntz", Primitive.TIMESTAMP_NTZ),
        ("decimal", Decimal(10, 0)),
        ("numeric(5)", Decimal(5, 0)),
        ("DEC( 12 , 2 )", Decimal(12, 2)),
        ("array<array<int>>", Array(Array(Primitive.INT))),
        ("map<string,bigint>", Map(Primitive.STRING, Primitive.BIGINT)),
        (
            "struct<a:int,b string not null>",
            Struct((Column("a", Primitive.INT), Column("b", Primitive.STRING, False))),
        ),
    ],
)
def test_types_are_read(ddl: str, expected: DataType) -> None:
    assert parse_type(ddl) == expected


def test_a_schema_over_several_lines_with_remarks() -> None:
    schema = Schema.of(
        """
        id STRING NOT NULL COMMENT 'the card''s \\'own\\' id',   -- of the issuer
        `a ``name``` INT COMMENT "tab\\there é \\u00e9",
        amount: DECIMAL(12,2) /* in the
                                 card's currency */
        """
    )
    assert schema.columns == (
        Column("id", Primitive.STRING, False, "the card's 'own' id"),
        Column("a `name`", Primitive.INT, True, "tab\there é é"),
        Column("amount", Decimal(12, 2)),
    )


def test_a_struct_at_the_top_is_its_columns() -> None:
    assert Schema.of("struct<id: string, n: int>") == Schema.of("id STRING, n INT")


def test_a_column_may_be_called_struct() -> None:
    assert Schema.of("struct STRING, comment INT, not DATE").names == ("struct", "comment", "not")


@pytest.mark.parametrize(
    ("ddl", "problem"),
    [
        ("", "the schema ends, expected a column's name (column 1)"),
        ("id", "the schema ends, expected the type of 'id' (column 3)"),
        ("id STRING,", "the schema ends, expected a column's name"),
        ("id STRING card STRING", "found 'card', expected a comma or the end (column 11)"),
        (
            "id\nSTIRNG",
            "not a supported type (line 2, column 1); did you mean 'STRING'?",
        ),
        ("id VARCHAR(5)", "write STRING"),
        ("id INTERVAL DAY", "write BIGINT"),
        ("id WHATEVER", "known here: BOOLEAN"),
        ("id STRING NOT", "expected 'NULL'"),
        ("id STRING COMMENT card", "expected the comment in quotes"),
        ("id STRING COMMENT 'open", '"\'" at character 19'),
        ("id STRING COMMENT '\\ud800'", "not a character"),
        (
            "my-id STRING",
            "'-' at character 3, which is not valid there; put names with",
        ),
        ("id DECIMAL(39,2)", "1 to 38, not 39"),
        ("id DECIMAL(0)", "1 to 38, not 0"),
        ("id DECIMAL(5,6)", "a scale larger than its precision"),
        ("id DECIMAL(5,-1)", "'-' at character 14"),
        ("id DECIMAL(x)", "expected a number of digits"),
        ("id DECIMAL(99999999999)", "expected a number of digits"),
        ("id ARRAY", "expected '<'"),
        ("id ARRAY<INT", "expected '>'"),
        ("id MAP<INT>", "expected ','"),
        ("id MAP<MAP<INT,INT>,INT>", "Spark cannot compare maps"),
        ("id STRUCT<>", "expected a column's name"),
        ("id STRUCT<a INT, A INT>", "'A' and 'a', which differ only in case"),
        ("id INT, id INT", "the schema has the column 'id' twice"),
        ("`` INT", "empty name"),
        ("id " + "ARRAY<" * 3000 + "INT" + ">" * 3000, "nests more than 100"),
    ],
)
def test_what_is_no_schema_is_refused(ddl: str, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        Schema.of(ddl)
    assert problem in str(caught.value)


@pytest.mark.parametrize("value", [None, 5, {"id": "STRING"}, int, ["id"]])
def test_other_things_are_no_schema(value: object) -> None:
    with pytest.raises(InputError, match="is not a schema"):
        Schema.of(value)


@given(schemas)
def test_a_rendered_schema_is_read_back(schema: Schema) -> None:
    assert Schema.of(schema.ddl) == schema


@given(data_types)
def test_a_rendered_type_is_read_back(type_: DataType) -> None:
    assert parse_type(type_.ddl) == type_


@given(st.text(st.sampled_from("ab1 ,<>()`'\"\\:-\n*/") | st.characters()))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        schema = Schema.of(text)
    except InputError:
        return
    assert Schema.of(schema.ddl) == schema


@given(schemas)
def test_spark_understands_the_json_and_gives_it_back(schema: Schema) -> None:
    struct = StructType.fromJson(schema.to_json())
    assert json.loads(struct.json()) == schema.to_json()
    assert Schema.of(struct) == schema


def test_a_struct_type_that_an_event_cannot_carry() -> None:
    struct = StructType.fromJson(
        {
            "type": "struct",
            "fields": [{"name": "span", "type": "interval", "nullable": True, "metadata": {}}],
        }
    )
    with pytest.raises(InputError, match="column 'span' has the type 'interval'"):
        Schema.of(struct)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("long", "the schema is BIGINT, not a STRUCT of columns"),
        ({"type": "struct", "fields": [{"name": "a"}]}, "a field without name or type"),
        ({"type": "struct", "fields": []}, "no columns"),
        ({"type": "udt", "class": "Point"}, "user-defined type Point"),
    ],
)
def test_json_that_is_no_schema_is_refused(value: object, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        Schema.from_json(value)


def test_a_schema_is_asked_by_name() -> None:
    schema = Schema.of("id STRING, n INT")
    assert "id" in schema
    assert "ID" not in schema
    assert schema["n"].type is Primitive.INT
    assert [column.name for column in schema] == ["id", "n"]
    assert len(schema) == 2
    assert str(schema) == "id STRING, n INT"
    with pytest.raises(KeyError):
        schema["nope"]
