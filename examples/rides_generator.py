"""A city on a rainy evening: requests for rides and drivers who take them, and what a right pipeline makes of it."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

ZONES = {"airport": 14, "harbour": 6, "old town": 10, "station": 18, "university": 8}
"""Zones, and how many drivers wait in each."""
CALM, RUSH = 0.5, 2.6
"""Requests a minute for each driver: before the theatres close, and after."""
CENT = Decimal("0.01")


@dataclass
class Minute:
    """What happens in one minute."""

    start: datetime
    requests: list[dict[str, Any]] = field(default_factory=list)
    drivers: list[dict[str, Any]] = field(default_factory=list)

    def prices(self) -> dict[str, tuple[int, int, Decimal]]:
        """Demand, supply and price by zone, for zones in which anything happened."""
        found = {}
        for zone in ZONES:
            demand = sum(row["zone"] == zone for row in self.requests)
            supply = len({row["driver"] for row in self.drivers if row["zone"] == zone and row["free"]})
            if demand or supply:
                scarcity = Decimal(3) if not supply else Decimal(demand) / supply
                found[zone] = (demand, supply, min(Decimal(3), max(Decimal(1), scarcity)).quantize(CENT, ROUND_HALF_UP))
        return found


class City:
    """Makes minutes, the same ones for the same seed."""

    def __init__(self, seed: int = 11) -> None:
        self._random = random.Random(seed)
        self._asked = 0

    def minutes(self, start: datetime, rush_after: int = 2) -> Iterator[Minute]:
        """One minute after the other; the rush begins after so many of them."""
        number = 0
        while True:
            yield self._minute(start + timedelta(minutes=number), RUSH if number >= rush_after else CALM)
            number += 1

    def _minute(self, start: datetime, demand: float) -> Minute:
        minute = Minute(start)
        for zone, drivers in ZONES.items():
            for _ in range(round(drivers * demand * self._random.uniform(0.6, 1.4))):
                self._asked += 1
                minute.requests.append({"id": f"r{self._asked}", "zone": zone, "at": self._moment(start)})
            # The more is asked for, the fewer are free.
            free = self._random.uniform(0.7, 1.0) if demand == CALM else self._random.uniform(0.3, 0.8)
            for driver in range(drivers):
                is_free = self._random.random() < free
                for _ in range(self._random.randint(1, 3)):
                    at = self._moment(start)
                    minute.drivers.append({"driver": f"{zone}-{driver}", "zone": zone, "free": is_free, "at": at})
        minute.requests.sort(key=lambda row: row["at"])
        minute.drivers.sort(key=lambda row: row["at"])
        return minute

    def _moment(self, start: datetime) -> datetime:
        return start + timedelta(milliseconds=self._random.randrange(60_000))
