"""Publish the clicks of an invented day: three sessions for each visitor, some duplicates, and two invalid messages.

python generate.py [NSQD]        # 127.0.0.1:4150
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from nsqx.client.blocking import Producer

MORNING = datetime(2026, 11, 15, 8, tzinfo=UTC)
PAGES = ("/", "/shop", "/shop/shoes", "/cart", "/help")


def clicks(rng: random.Random) -> Iterator[bytes]:
    """Yield the messages in random order."""
    made = []
    for user in ("ann", "bob", "eve", "sue"):
        for session in range(3):
            time = MORNING + timedelta(hours=2 * session, minutes=rng.randrange(30))
            for number in range(5):
                time += timedelta(seconds=rng.randrange(10, 600))
                click = {
                    "click_id": f"{user}-{session}-{number}",
                    "user": user,
                    "page": rng.choice(PAGES),
                    "time": time.isoformat(),
                }
                made += [json.dumps(click).encode()] * rng.choice((1, 1, 1, 2))
    rng.shuffle(made)
    yield from made
    yield b"GET /favicon.ico"
    yield b'{"click_id": "x", "page": "/", "time": "2026-11-15T09:00:00Z"}'
    # A much later click moves the watermark past the end of all sessions.
    last = {"click_id": "last", "user": "ann", "page": "/", "time": (MORNING + timedelta(hours=12)).isoformat()}
    yield json.dumps(last).encode()


def main() -> None:
    """Publish all messages."""
    address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:4150"
    messages = list(clicks(random.Random(1)))
    with Producer(address) as producer:
        producer.publish_many("clicks", messages)
    print(f"published {len(messages)} messages to clicks")


if __name__ == "__main__":
    main()
