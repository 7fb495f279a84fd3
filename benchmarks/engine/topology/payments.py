"""The payments that are sent: some late, some twice, some broken. As the app, they are never edited."""

import json
import random
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

SEED = 7
ORDINARY, STRAGGLER, DUPLICATE, LATE, MALFORMED = "ordinary", "straggler", "duplicate", "late", "malformed"
SHARES = {ORDINARY: 88, STRAGGLER: 5, DUPLICATE: 3, LATE: 2, MALFORMED: 2}
COUNTRIES = ["DE", "FR", "ES", "IT", "PL", "NL", "SE", "PT", "US", "BR"]
LONGEST_DELAY = 4.0
"""Seconds: how far behind the others a straggler is, where the app waits for fifteen."""
RESENT_WITHIN = 2.0
BURST_SHARE = 0.006
CENT = Decimal("0.01")


@dataclass(frozen=True)
class Payment:
    """One that was made: a row, or, if it is malformed, the bytes that somebody sent instead."""

    kind: str
    card: str
    row: dict[str, Any] | None
    raw: bytes | None = None


class Payments:
    """Makes payments, the same ones for the same seed and the same times."""

    def __init__(self, seed: int = SEED, cards: int = 3000) -> None:
        self._random = random.Random(seed)
        self._cards = [f"4{self._random.randrange(10**14):014d}0" for _ in range(cards)]
        self._homes = {card: self._random.choice(COUNTRIES[:8]) for card in self._cards}
        # A few cards are used a lot, most of them seldom.
        self._weights = [1 / (rank + 300) for rank in range(cards)]
        self._made = 0
        self._recent: deque[Payment] = deque(maxlen=200)
        self._stolen: tuple[str, int] = ("", 0)

    def cards(self) -> list[dict[str, Any]]:
        """The table of cards: whose each is, and where its owner lives."""
        owned = enumerate(self._homes.items(), start=1)
        return [{"card": card, "owner": f"owner {number}", "home": home} for number, (card, home) in owned]

    def make(self, now: datetime, shares: Mapping[str, int] = SHARES) -> Payment:
        """The payment that is sent at this moment."""
        (kind,) = self._random.choices(list(shares), list(shares.values()))
        if kind == DUPLICATE:
            return self._duplicate(now)
        if kind == MALFORMED:
            return self._malformed(now)
        delay = {
            ORDINARY: timedelta(),
            STRAGGLER: timedelta(seconds=self._random.uniform(0.5, LONGEST_DELAY)),
            LATE: timedelta(days=1, seconds=self._random.uniform(0, 3600)),
        }[kind]
        payment = self._payment(kind, now - delay)
        if kind != LATE:
            self._recent.append(payment)
        return payment

    def _payment(self, kind: str, at: datetime) -> Payment:
        card, abroad = self._card()
        country = self._random.choice(COUNTRIES) if abroad else self._homes[card]
        amount = Decimal(self._random.lognormvariate(3.2, 1.0)).quantize(CENT) + CENT
        self._made += 1
        row = {"id": f"p{self._made:08d}", "card": card, "amount": amount, "country": country, "at": at}
        return Payment(kind, card, row)

    def _card(self) -> tuple[str, bool]:
        """Whose turn it is. Now and then a card is stolen, and used many times in a row, anywhere."""
        card, left = self._stolen
        if left:
            # Its owner's city goes on paying meanwhile.
            if self._random.random() < 0.3:
                self._stolen = (card, left - 1)
                return card, True
        elif self._random.random() < BURST_SHARE:
            self._stolen = (self._random.choice(self._cards), self._random.randint(10, 20))
        (card,) = self._random.choices(self._cards, self._weights)
        return card, self._random.random() < 0.02

    def _duplicate(self, now: datetime) -> Payment:
        """The same once more, soon after: the terminal got no answer."""
        recent = [one for one in self._recent if one.row and now - one.row["at"] < timedelta(seconds=RESENT_WITHIN)]
        if not recent:
            return self._payment(ORDINARY, now)
        again = self._random.choice(recent)
        return Payment(DUPLICATE, again.card, again.row)

    def _malformed(self, now: datetime) -> Payment:
        payment = self._payment(MALFORMED, now)
        assert payment.row is not None
        said = {**payment.row, "amount": float(payment.row["amount"]), "at": now.isoformat()}
        return Payment(MALFORMED, payment.card, None, self._random.choice(list(_broken(said))))


def _broken(said: dict[str, Any]) -> Iterable[bytes]:
    """What a record may look like that nobody can use."""
    whole = json.dumps(said)
    yield whole[: len(whole) // 2].encode()
    yield b""
    yield (whole + " -- resent").encode()
    yield whole.replace(said["id"], "p\udcff").encode(errors="surrogateescape")
    yield json.dumps({**said, "amount": "much"}).encode()
    yield json.dumps({**said, "amount": 12.345}).encode()
    yield json.dumps({**said, "card": None}).encode()
    yield json.dumps({**said, "at": None}).encode()
    yield json.dumps({**said, "at": "2099-01-01T00:00:00Z"}).encode()
    yield json.dumps([said]).encode()
