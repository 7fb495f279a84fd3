"""Spark's DDL for schemas, read into plain values: `id STRING NOT NULL COMMENT 'a UUID', tags ARRAY<INT>`."""

import re
from dataclasses import dataclass

from headrace.errors import InputError
from headrace.topology.datatypes import Array, Column, DataType, Decimal, Map, Primitive, Struct
from headrace.topology.nearest import did_you_mean

__all__ = ["parse_columns", "parse_type"]

PRIMITIVES = {primitive.value: primitive for primitive in Primitive} | {
    "BYTE": Primitive.TINYINT,
    "SHORT": Primitive.SMALLINT,
    "INTEGER": Primitive.INT,
    "LONG": Primitive.BIGINT,
    "REAL": Primitive.FLOAT,
    "TIMESTAMP_LTZ": Primitive.TIMESTAMP,
}
DECIMALS = ("DECIMAL", "DEC", "NUMERIC")
SPARK_DECIMAL = Decimal(10, 0)
TYPE_NAMES = (*PRIMITIVES, *DECIMALS, "ARRAY", "MAP", "STRUCT")
# Types Spark knows that an event cannot carry faithfully from hop to hop, and what to write for them.
INSTEAD = {
    "CHAR": "STRING",
    "CHARACTER": "STRING",
    "VARCHAR": "STRING",
    "TEXT": "STRING",
    "JSON": "STRING",
    "UUID": "STRING",
    "VARIANT": "STRING",
    "TIME": "STRING",
    "INTERVAL": "BIGINT",
    "BOOL": "BOOLEAN",
    "BYTES": "BINARY",
    "BYTEA": "BINARY",
    "INT64": "BIGINT",
    "INT32": "INT",
    "DATETIME": "TIMESTAMP",
    "TIMESTAMPTZ": "TIMESTAMP",
}
DEEPEST = 100  # levels of nesting: far beyond any event, and well within Python's stack

TOKEN = re.compile(
    r"""
    (?P<space>   (?: \s | --[^\n]* | /\*.*?\*/ )+ )
  | (?P<quoted>  `(?:[^`]|``)*` )
  | (?P<text>    '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" )
  | (?P<word>    [^\W\d]\w* )
  | (?P<number>  [0-9]+ )
  | (?P<mark>    [<>(),:] )
    """,
    re.VERBOSE | re.DOTALL,
)
ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[0-3][0-7]{2}|.)|''|\"\"", re.DOTALL)
ESCAPED = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


def parse_columns(ddl: str) -> tuple[Column, ...]:
    """The columns of a row: `a INT, b STRING`, or the same inside `STRUCT<...>`."""
    parser = _Parser(ddl)
    if parser.at_struct():
        type_ = parser.type()
        parser.end()
        assert isinstance(type_, Struct)
        return type_.columns
    columns = parser.columns()
    parser.end()
    return columns


def parse_type(ddl: str) -> DataType:
    """One type: `DECIMAL(12,2)`, `ARRAY<STRING>`."""
    parser = _Parser(ddl)
    type_ = parser.type()
    parser.end()
    return type_


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int


class _Parser:
    def __init__(self, ddl: str) -> None:
        self.ddl = ddl
        self.tokens = _tokens(ddl)
        self.position = 0
        self.depth = 0

    def columns(self) -> tuple[Column, ...]:
        columns = [self.column()]
        while self.accept(","):
            columns.append(self.column())
        return tuple(columns)

    def column(self) -> Column:
        token = self.take()
        if token.kind == "word":
            name = token.text
        elif token.kind == "quoted":
            name = token.text[1:-1].replace("``", "`")
        else:
            raise self.unexpected(token, "a column's name")
        self.accept(":")
        type_ = self.type(of=name)
        nullable = True
        if self.accept("NOT"):
            self.expect("NULL")
            nullable = False
        comment = self.comment() if self.accept("COMMENT") else None
        return Column(name, type_, nullable, comment)

    def comment(self) -> str:
        token = self.take()
        if token.kind != "text":
            raise self.unexpected(token, "the comment in quotes")
        return _unquoted(token.text)

    def type(self, of: str | None = None) -> DataType:
        token = self.take()
        expected = "a type" if of is None else f"the type of {of!r}"
        if token.kind != "word":
            raise self.unexpected(token, expected)
        name = token.text.upper()
        if name in PRIMITIVES:
            return PRIMITIVES[name]
        if name in DECIMALS:
            return self.decimal()
        if name in ("ARRAY", "MAP", "STRUCT"):
            return self.nested(name)
        owner = "" if of is None else f" of column {of!r}"
        instead = INSTEAD.get(name)
        raise InputError(
            f"{token.text!r}{owner} is not a supported type {self.at(token)}",
            next_step=f"write {instead}" if instead else did_you_mean(name, TYPE_NAMES),
        )

    def decimal(self) -> Decimal:
        if not self.accept("("):
            return SPARK_DECIMAL
        precision = self.number()
        scale = self.number() if self.accept(",") else 0
        self.expect(")")
        return Decimal(precision, scale)

    def nested(self, name: str) -> DataType:
        self.depth += 1
        if self.depth > DEEPEST:
            raise InputError(f"the schema nests more than {DEEPEST} levels")
        self.expect("<")
        type_: DataType
        if name == "ARRAY":
            type_ = Array(self.type())
        elif name == "MAP":
            key = self.type()
            self.expect(",")
            type_ = Map(key, self.type())
        else:
            type_ = Struct(self.columns())
        self.expect(">")
        self.depth -= 1
        return type_

    def number(self) -> int:
        token = self.take()
        if token.kind != "number" or len(token.text) > 9:
            raise self.unexpected(token, "a number of digits")
        return int(token.text)

    def at_struct(self) -> bool:
        first, second = (*self.tokens, self.tokens[-1])[:2]
        return first.kind == "word" and first.text.upper() == "STRUCT" and second.text == "<"

    def end(self) -> None:
        token = self.take()
        if token.kind != "end":
            raise self.unexpected(token, "a comma or the end")

    def expect(self, text: str) -> None:
        token = self.tokens[self.position]
        if not self.accept(text):
            raise self.unexpected(token, repr(text))

    def accept(self, text: str) -> bool:
        token = self.tokens[self.position]
        if token.kind not in ("word", "mark") or token.text.upper() != text:
            return False
        self.position += 1
        return True

    def take(self) -> _Token:
        token = self.tokens[self.position]
        if token.kind != "end":
            self.position += 1
        return token

    def unexpected(self, token: _Token, expected: str) -> InputError:
        found = "the schema ends" if token.kind == "end" else f"found {token.text!r}"
        return InputError(f"{found}, expected {expected} {self.at(token)}")

    def at(self, token: _Token) -> str:
        before = self.ddl[: token.start]
        line, column = before.count("\n") + 1, token.start - (before.rfind("\n") + 1) + 1
        return f"(line {line}, column {column})" if "\n" in self.ddl else f"(column {column})"


def _tokens(ddl: str) -> list[_Token]:
    tokens = []
    position = 0
    while position < len(ddl):
        match = TOKEN.match(ddl, position)
        if match is None:
            raise InputError(
                f"the schema has {ddl[position]!r} at character {position + 1}, which is not valid there",
                next_step="put names with special characters in `backticks`",
            )
        if match.lastgroup != "space":
            tokens.append(_Token(str(match.lastgroup), match.group(), position))
        position = match.end()
    tokens.append(_Token("end", "", len(ddl)))
    return tokens


def _unquoted(text: str) -> str:
    quote = text[0]

    def plain(match: re.Match[str]) -> str:
        code = match.group(1)
        if code is None:
            return quote if match.group() == quote * 2 else match.group()
        if len(code) == 1:
            return ESCAPED.get(code, code)
        number = int(code[1:], 16) if code[0] in "uU" else int(code, 8)
        if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
            raise InputError(f"the comment {text} has \\{code}, which is not a character")
        return chr(number)

    return ESCAPE.sub(plain, text[1:-1])
