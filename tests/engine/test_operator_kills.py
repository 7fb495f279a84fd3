"""kill -9 while operators hold state: what comes out of each, or of a join, comes out exactly once."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.engine.numbers_run import at, key
from tests.engine.test_kills import World, flowing
from tests.engine.topics import messages, send

PLACES = (
    "before-commit slides",
    "committed bursts",
    "before-spark-commit tumbles",
    "committed opened",
    "before-spark-commit enriched",
    "rows-sent spaced",
    "before-spark-commit pairs",
    "before-commit pairs",
    "before-spark-commit joined",
    "committed lived",
    "before-commit applied",
)
KEYS = [f"k{number}" for number in range(11)]


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_state_survives_whatever_is_killed(tmp_path: Path) -> None:
    dice = random.Random(5)
    with World(tmp_path, "operators") as world:
        send(world.broker.address, "homes", [{"k": k, "home": f"home of {k}"} for k in KEYS], "k")
        with flowing(world) as flow:
            for number, place in enumerate(PLACES):
                if world.process is None or world.process.poll() is not None:
                    world.start()
                world.goes_on("slides", "pairs", "lived")
                if number % 3 == 2:
                    world.kill_broker(None, dice.uniform(0, 2))
                    world.goes_on("slides", "pairs")
                if number % 3 == 1:
                    world.kill_worker(dice, at_a_place=False)
                    world.goes_on("slides", "pairs")
                world.kill_driver(dice, place if number % 4 != 1 else None)
        world.settle()
        check(world.broker.address, flow.sent)
        begun = Counter(
            (said["node"], said["batch"])
            for said in map(json.loads, world.journal.read_text().splitlines())
            if "ranges" in said
        )
        assert sum(times > 1 for times in begun.values()) >= 3, "too little was replayed to show anything"


def check(address: str, sent: int) -> None:
    by_key: dict[str, list[int]] = defaultdict(list)
    for n in range(sent):
        by_key[key(n)].append(n)
    five = timedelta(seconds=5)
    tumbling: dict[tuple[str, Any], list[int]] = defaultdict(list)
    sliding, bursts, opened, spaced = Counter(), Counter(), Counter(), Counter()  # type: ignore[var-annotated]
    for k, numbers in by_key.items():
        for n in numbers:
            tumbling[k, (at(n) - at(0)) // five].append(n)
            inside = [m for m in numbers if at(n) - five < at(m) <= at(n)]
            sliding[n, len(inside), sum(inside)] += 1
        for burst in split([n for n in numbers if n % 50 < 40], timedelta(milliseconds=300)):
            bursts[k, len(burst), sum(burst)] += 1
        for session in sessions(numbers):
            opened[k, len(session), sum(session)] += 1
        last = None
        for n in numbers:
            if last is None or at(n) - at(last) >= timedelta(seconds=1):
                spaced[n] += 1
                last = n
    windows = Counter((k, len(inside), sum(inside)) for (k, _), inside in tumbling.items())
    assert Counter((row["k"], row["count"], row["total"]) for row in rows(address, "tumbles")) == windows
    assert Counter((row["k"], row["count"], row["total"]) for row in rows(address, "applied")) == windows
    assert Counter((row["n"], row["count"], row["total"]) for row in rows(address, "slides")) == sliding
    assert Counter((row["k"], row["count"], row["total"]) for row in rows(address, "bursts")) == bursts
    assert Counter((row["k"], row["count"], row["total"]) for row in rows(address, "opened")) == opened
    assert Counter(row["n"] for row in rows(address, "spaced")) == spaced
    assert Counter((row["n"], row["home"]) for row in rows(address, "enriched")) == Counter(
        (n, f"home of {key(n)}") for n in range(sent)
    )
    assert not rows(address, "tumbles.late")
    assert not rows(address, "slides.late")
    assert not rows(address, "applied.late")
    assert Counter((row["n"], row["m"]) for row in rows(address, "joined")) == Counter(
        (n, n + 1) for n in range(0, sent - 1, 2)
    )
    lived = {row["k"]: (row["n"], row["home"]) for row in rows(address, "lived")}
    assert lived == {k: (max(numbers), f"home of {k}") for k, numbers in by_key.items()}
    gathered = {
        row["pair"]: (row["even"] and row["even"]["n"], row["odd"] and row["odd"]["n"], row["missing"])
        for row in rows(address, "pairs")
    }
    assert len(rows(address, "pairs")) == len(gathered)
    whole = {n // 2: (n, n + 1, []) for n in range(0, sent - 1, 2)}
    assert {pair: parts for pair, parts in gathered.items() if not parts[2]} == whole


def rows(address: str, topic: str) -> list[dict[str, Any]]:
    """The rows of a topic, the one that moved the clock at the end left out."""
    found = [json.loads(message.value() or b"") for message in messages(address, topic)]
    return [row for row in found if row.get("n", 0) >= 0 and row.get("total", 0) >= 0 and row.get("pair", 0) >= 0]


def split(numbers: list[int], gap: timedelta) -> list[list[int]]:
    found: list[list[int]] = []
    for n in numbers:
        if found and at(n) - at(found[-1][-1]) < gap:
            found[-1].append(n)
        else:
            found.append([n])
    return found


def sessions(numbers: list[int]) -> list[list[int]]:
    """From a number that five divides to one that leaves three, or to a second without any."""
    found: list[list[int]] = []
    is_open = False
    for n in numbers:
        if is_open and at(n) - at(found[-1][-1]) >= timedelta(seconds=1):
            is_open = False
        if not is_open and n % 5 == 0:
            found.append([])
            is_open = True
        if is_open:
            found[-1].append(n)
            is_open = n % 5 != 3
    return found
