"""Nexmark's queries on real topics and Spark: what each writes is what plain SQL makes of the same events."""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from benchmarks.nexmark.by_hand import BY_HAND
from benchmarks.nexmark.events import DISORDER, Auction, Bid, Person, Side, Story, fill, filling
from benchmarks.nexmark.expected import SQL, differences
from benchmarks.nexmark.queries import QUERIES
from benchmarks.nexmark.runs import Setting

if TYPE_CHECKING:
    from headrace.testing import Environment

pytestmark = pytest.mark.timeout(300)

QUICK = ("q2", "q7", "q11")
STATEFUL = [name for name in SQL if name not in ("q0", "q1", "q2")]
STORY = Story(3_000)
BATCH = 700


@pytest.fixture(scope="module")
def setting(headrace_environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Setting:
    """A small story in topics of its own, read in several batches."""
    folder = tmp_path_factory.mktemp("nexmark")
    address, prefix = headrace_environment.addresses(postgres=False).kafka, f"nexmark-{uuid.uuid4().hex[:8]}."
    assert address is not None
    fill(address, STORY, folder, prefix)
    return Setting(headrace_environment.spark.newSession(), address, folder, BATCH, prefix)


def test_a_story_is_the_same_again_and_rises_in_time_within_the_disorder() -> None:
    events = [event for event in STORY if not isinstance(event, Side)]
    assert events == [event for event in Story(STORY.events) if not isinstance(event, Side)]
    told, tail = events[: STORY.events], events[STORY.events :]
    assert Counter(map(type, told)) == {Person: 60, Auction: 180, Bid: 2_760}
    newest = itertools.accumulate((event.at for event in events), max)
    assert all(event.at >= latest - DISORDER for event, latest in zip(events, newest, strict=True))
    assert max(event.at for event in told) < min(event.at for event in tail)
    opened = {event.id: event.at for event in told if isinstance(event, Auction)}
    assert {event.auction for event in told if isinstance(event, Bid)} <= opened.keys()


def way_of(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in SQL]
)
def test_a_topology_gives_what_sql_gives(setting: Setting, name: str) -> None:
    query = QUERIES[name]
    with setting.by_headrace(query, way_of(name)) as ran:
        assert differences(setting.spark, query, ran.found, setting.folder, STORY.end) == []


@pytest.mark.long
@pytest.mark.parametrize("name", STATEFUL)
def test_it_does_so_too_where_events_come_bit_by_bit_between_restarts(setting: Setting, name: str) -> None:
    query = QUERIES[name]
    bitwise = replace(setting, folder=setting.folder / name, prefix=f"{way_of('bitwise')}.")
    arriving = filling(setting.address, STORY, bitwise.folder, bitwise.prefix, parts=3)
    with bitwise.by_headrace(query, way_of(name), arriving) as ran:
        assert differences(setting.spark, query, ran.found, bitwise.folder, STORY.end) == []


@pytest.mark.long
@pytest.mark.parametrize("name", BY_HAND)
def test_what_it_is_timed_against_gives_the_same(setting: Setting, name: str) -> None:
    query = QUERIES[name]
    with setting.by_hand(query, way_of(name)) as ran:
        assert differences(setting.spark, query, ran.found, setting.folder, STORY.end) == []
