"""Two tables joined as they change, against a join of all their rows after each step."""

import pickle
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.operators.chunks import MemoryChunks
from headrace.operators.operator import RESULTS, Run
from headrace.operators.table_join import TableJoin
from tests.operators.reference import Row, identity, moment
from tests.operators.rows import FEW_OR_MANY

TIME = pa.timestamp("us", "UTC")
MARKS = [("_time", TIME), ("_order", pa.int64()), ("_deleted", pa.bool_())]
ORDERS = pa.schema(
    [
        ("id", pa.int32()),
        ("client", pa.string()),
        ("zone", pa.float64()),
        ("what", pa.map_(pa.string(), pa.int32())),
        *MARKS,
    ]
)
CLIENTS = pa.schema(
    [
        ("name", pa.string()),
        ("area", pa.float64()),
        ("kind", pa.int32()),
        ("club", pa.struct([("x", pa.int64())])),
        *MARKS,
    ]
)
ON = (("client", "name"), ("zone", "area"))
KEYS: dict[tuple[tuple[str, ...], tuple[str, ...]], dict[str, tuple[str, ...]]] = {
    (("id",), ("name", "area")): {
        "inner": ("id",),
        "left": ("id",),
        "right": ("id", "client", "zone"),
        "full": ("id", "client", "zone"),
    },
    (("id",), ("name", "kind")): {
        "inner": ("id", "kind"),
        "left": ("id", "kind"),
        "right": ("id", "client", "kind"),
        "full": ("id", "client", "kind"),
    },
    (("client", "zone"), ("kind",)): {"inner": ("client", "zone", "kind"), "right": ("kind",)},
    (("client", "zone"), ("name", "kind")): {"right": ("client", "kind")},
}
"""By the keys of both, what the rows of each join are known by."""

How = Literal["inner", "left", "right", "full"]

ZONES = st.sampled_from([0.0, -0.0, float("nan"), 1.0])
NAMES = st.sampled_from(["hot", "hot", "a", "b", None])
DELETES = st.sampled_from([False, False, True])
LEFT = st.lists(st.tuples(st.integers(0, 3), NAMES, ZONES, DELETES), max_size=6)
RIGHT = st.lists(st.tuples(NAMES, ZONES, st.integers(0, 1), DELETES), max_size=4)
STEPS = st.lists(st.tuples(LEFT, RIGHT), max_size=8)


def join(how: How, left_key: tuple[str, ...] = ("id",), right_key: tuple[str, ...] = ("name", "area")) -> TableJoin:
    return TableJoin(left=ORDERS, right=CLIENTS, left_key=left_key, right_key=right_key, on=ON, how=how)


def order(given: tuple[Any, ...], number: int, key: tuple[str, ...] = ("id",)) -> Row:
    shown: Row = {"id": given[0], "client": given[1], "zone": given[2], "what": [("number", number)]}
    if given[3]:
        shown = {name: value if name in key else None for name, value in shown.items()}
    return shown | {"_time": moment(number), "_order": number, "_deleted": given[3]}


def client(given: tuple[Any, ...], number: int) -> Row:
    shown = {"name": given[0], "area": given[1], "kind": given[2], "club": None if given[3] else {"x": number}}
    return shown | {"_time": moment(number), "_order": number, "_deleted": given[3]}


def joined(orders: dict[Any, Row], clients: dict[Any, Row], how: How) -> list[Row]:
    """The whole join."""
    rows = []
    pairs = [
        (one, other)
        for one in orders
        for other in clients
        if orders[one]["client"] is not None
        and identity([orders[one]["client"], orders[one]["zone"]])
        == identity([clients[other]["name"], clients[other]["area"]])
    ]
    alone: list[Any] = []
    if how in ("left", "full"):
        alone += [(one, None) for one in orders if one not in {mine for mine, _ in pairs}]
    if how in ("right", "full"):
        alone += [(None, other) for other in clients if other not in {theirs for _, theirs in pairs}]
    for one, other in [*pairs, *alone]:
        mine, theirs = orders.get(one, {}), clients.get(other, {})
        shown = {
            "id": mine.get("id"),
            "client": mine["client"] if mine else theirs["name"],
            "zone": mine["zone"] if mine else theirs["area"],
            "what": mine.get("what"),
            "kind": theirs.get("kind"),
            "club": theirs.get("club"),
        }
        rows.append(shown)
    return rows


@pytest.mark.parametrize("examples", FEW_OR_MANY)
@pytest.mark.parametrize(("keys", "how"), [(keys, how) for keys, hows in KEYS.items() for how in hows])
def test_the_changelog_gives_the_join(keys: tuple[tuple[str, ...], tuple[str, ...]], how: How, examples: int) -> None:
    left_key, right_key = keys

    @settings(max_examples=examples, deadline=None)
    @given(STEPS)
    def holds(steps: list[tuple[list[Any], list[Any]]]) -> None:
        operator = pickle.loads(pickle.dumps(join(how, left_key, right_key)))
        assert operator.key == KEYS[keys][how]
        run = Run(operator, MemoryChunks())
        orders: dict[Any, Row] = {}
        clients: dict[Any, Row] = {}
        made: dict[Any, Row] = {}
        said: dict[Any, int] = {}
        number = 0
        for changed, others in steps:
            left = [order(one, number + place, left_key) for place, one in enumerate(changed)]
            right = [client(one, number + len(left) + place) for place, one in enumerate(others)]
            number += len(left) + len(right)
            for mine, rows, names in ((orders, left, left_key), (clients, right, right_key)):
                for row in rows:
                    place = identity([row[name] for name in names])
                    mine.pop(place, None)
                    if not row["_deleted"]:
                        mine[place] = row
            tables = {"left": pa.Table.from_pylist(left[::-1], ORDERS), "right": pa.Table.from_pylist(right, CLIENTS)}
            output = run.step(0, **{name: table for name, table in tables.items() if len(table)})
            table = output.tables.get(RESULTS, operator.outputs[RESULTS].empty_table())
            assert table.schema == operator.outputs[RESULTS]
            told = table.to_pylist()
            places = [identity([row[name] for name in operator.key]) for row in told]
            assert len(places) == len(set(places)), "a row was told twice in a step"
            before = dict(made)
            for key, row in zip(places, told, strict=True):
                assert row["_order"] > said.get(key, 0)
                said[key] = row.pop("_order")
                assert row.pop("_time") < moment(max(number, 1))
                if row.pop("_deleted"):
                    assert made.pop(key, None), "a row that never was is gone"
                    assert {name for name, value in row.items() if value is not None} <= {*operator.key}
                else:
                    made[key] = row
            after = {identity([row[name] for name in operator.key]): row for row in joined(orders, clients, how)}
            assert identity(sorted(made.items(), key=repr)) == identity(sorted(after.items(), key=repr))
            rewritten = [value for row in (*left, *right) for value in (row.get("what"), row.get("club")) if value]
            for key in places:
                row = made.get(key, {})
                same = key in before and identity(row) == identity(before[key])
                assert not same or row["what"] in rewritten or row["club"] in rewritten, "nothing has changed"

    holds()


def test_when_a_row_is_valid() -> None:
    run = Run(join("left"), MemoryChunks())

    def step(left: list[Row], right: list[Row]) -> list[tuple[Any, ...]]:
        tables = {"left": pa.Table.from_pylist(left, ORDERS), "right": pa.Table.from_pylist(right, CLIENTS)}
        rows = run.step(0, **tables).tables[RESULTS].to_pylist()
        return sorted((row["_time"], row["_deleted"], row["club"] and row["club"]["x"]) for row in rows)

    assert step([order((1, "a", 1.0, False), 5)], []) == [(moment(5), False, None)]
    assert step([], [client(("a", 1.0, 0, False), 9)]) == [(moment(9), False, 9)]
    assert step([order((1, "a", 1.0, False), 11)], []) == [(moment(11), False, 9)]
    assert step([], [client(("a", 1.0, 0, True), 14)]) == [(moment(14), False, None)]


def test_one_change_beside_many_rows_of_its_like_tells_one_row() -> None:
    count = 20_000
    times = pa.array(np.zeros(count, np.int64)).cast(TIME)
    many = pa.table(
        [np.arange(count, dtype=np.int32), ["hot"] * count, np.ones(count), pa.nulls(count, ORDERS.field("what").type),
         times, np.arange(count), np.zeros(count, np.bool_)],
        ORDERS,
    )  # fmt: skip
    run = Run(join("inner"), MemoryChunks())
    run.step(0, left=many, right=pa.Table.from_pylist([client(("hot", 1.0, 0, False), 1)], CLIENTS))
    assert isinstance(run.chunks, MemoryChunks)
    before = {name: blob for name, blob in run.chunks.blobs.items() if name.startswith("left")}
    change = pa.Table.from_pylist([order((7, "hot", 1.0, False), count + 1)], ORDERS)
    assert len(run.step(0, left=change).tables[RESULTS]) == 1
    assert before.items() <= run.chunks.blobs.items()
