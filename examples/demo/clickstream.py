"""Clicks of visitors in a shop: a generator of JSON messages, and a publisher with a steady rate."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime

from nsqx import Producer

PAGES = ("/", "/search", "/shoes", "/shoes/red", "/hats", "/cart", "/checkout", "/thanks")
WEIGHTS = (30, 20, 14, 9, 12, 8, 4, 3)
VISITORS = 5_000
_TURN_S = 0.05


def clicks(rng: random.Random) -> Iterator[bytes]:
    """Yield clicks without end, numbered from 0."""
    number = 0
    while True:
        click = {
            "id": number,
            "visitor": f"v{rng.randrange(VISITORS):04}",
            "page": rng.choices(PAGES, WEIGHTS)[0],
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        }
        yield json.dumps(click).encode()
        number += 1


class Stream:
    """Publishes clicks to a topic. ``published`` counts the clicks that nsqd has acknowledged."""

    def __init__(self, address: str, topic: str) -> None:
        self._address = address
        self._topic = topic
        self._clicks = clicks(random.Random(7))
        self.published = 0

    async def run(self, rate: int, seconds: float) -> None:
        """Publish ``rate`` clicks a second for ``seconds``."""
        started_s, before = time.monotonic(), self.published
        async with Producer(self._address) as producer:
            while (elapsed_s := time.monotonic() - started_s) < seconds:
                due = before + int(elapsed_s * rate) - self.published
                if due > 0:
                    await producer.publish_many(self._topic, [next(self._clicks) for _ in range(due)])
                    self.published += due
                await asyncio.sleep(_TURN_S)
