import datetime
import decimal
import enum
import uuid
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NewType, Optional

import pydantic
import pytest

from headrace.errors import InputError
from headrace.topology import Schema

CardId = NewType("CardId", str)


class Kind(enum.Enum):
    LOGIN = "login"
    LOGOUT = "logout"


class Level(enum.IntEnum):
    LOW = 1


@dataclass
class Place:
    city: str
    zip: str | None


@dataclass
class Payment:
    version: ClassVar[int] = 1
    id: uuid.UUID
    card: CardId
    amount: Annotated[decimal.Decimal, "DECIMAL(12,2)"]
    rate: decimal.Decimal
    count: int
    ratio: float
    ok: bool
    raw: bytes
    at: datetime.datetime
    day: datetime.date
    kind: Kind
    level: Level
    way: Literal["in", "out", None]
    place: Place
    note: Optional[str]  # noqa: UP045
    tags: list[str] = field(default_factory=list)
    pair: tuple[int, ...] = ()
    labels: dict[str, float | None] = field(default_factory=dict)
    small: Annotated[int | None, "SMALLINT"] = None


def test_a_dataclass_is_read_by_its_annotations() -> None:
    assert [column.ddl for column in Schema.of(Payment)] == [
        "id STRING NOT NULL",
        "card STRING NOT NULL",
        "amount DECIMAL(12,2) NOT NULL",
        "rate DECIMAL(38,18) NOT NULL",
        "count BIGINT NOT NULL",
        "ratio DOUBLE NOT NULL",
        "ok BOOLEAN NOT NULL",
        "raw BINARY NOT NULL",
        "at TIMESTAMP NOT NULL",
        "day DATE NOT NULL",
        "kind STRING NOT NULL",
        "level BIGINT NOT NULL",
        "way STRING",
        "place STRUCT<city STRING NOT NULL, zip STRING> NOT NULL",
        "note STRING",
        "tags ARRAY<STRING>",
        "pair ARRAY<BIGINT>",
        "labels MAP<STRING, DOUBLE>",
        "small SMALLINT",
    ]


class Seller(pydantic.BaseModel):
    name: str


class Offer(pydantic.BaseModel):
    id: str
    price: decimal.Decimal = pydantic.Field(max_digits=9, decimal_places=3, description="before tax")
    prices: list[Annotated[decimal.Decimal, pydantic.Field(max_digits=5, decimal_places=1)]]
    quantity: pydantic.PositiveInt | None
    seller: Seller
    currency: Annotated[str, "STRING"] = "EUR"


def test_a_pydantic_model_is_read_by_its_fields() -> None:
    assert [column.ddl for column in Schema.of(Offer)] == [
        "id STRING NOT NULL",
        "price DECIMAL(9,3) NOT NULL COMMENT 'before tax'",
        "prices ARRAY<DECIMAL(5,1)> NOT NULL",
        "quantity BIGINT",
        "seller STRUCT<name STRING NOT NULL> NOT NULL",
        "currency STRING",
    ]


@dataclass
class Tree:
    children: "list[Tree]"


@dataclass
class Unknown:
    other: "Nowhere"  # type: ignore[name-defined]  # noqa: F821


@dataclass
class Mixed:
    value: int | str


@dataclass
class MixedValues:
    value: Literal["a", 1]


@dataclass
class Anything:
    value: Any


@dataclass
class Bare:
    values: list  # type: ignore[type-arg]


@dataclass
class Span:
    value: datetime.timedelta


@dataclass
class Typo:
    value: Annotated[decimal.Decimal, "DECMAL(12,2)"]


@dataclass
class Empty:
    pass


class Aliased(pydantic.BaseModel):
    card: str = pydantic.Field(alias="cardNumber")


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (Tree, "Tree contains itself"),
        (Unknown, "annotations of Unknown cannot be resolved: name 'Nowhere' is not defined"),
        (Mixed, "Mixed.value has several types: int | str; give its type"),
        (MixedValues, "MixedValues.value has values of several types"),
        (Anything, "Anything.value is of Any"),
        (Bare, "Bare.values is of list"),
        (Span, "Span.value is of timedelta, which has no column type; give its type"),
        (Typo, "Typo.value: 'DECMAL' is not a supported type (column 1); did you mean 'DECIMAL'?"),
        (Empty, "the schema has no columns"),
        (Aliased, "Aliased.card has the alias 'cardNumber'"),
    ],
)
def test_what_no_column_stands_for_is_refused(model: type, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        Schema.of(model)
    assert problem in str(caught.value)


def test_a_row_is_no_schema() -> None:
    with pytest.raises(InputError, match="is not a schema"):
        Schema.of(Place("Bern", None))
