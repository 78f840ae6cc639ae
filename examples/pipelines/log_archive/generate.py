"""Publish log lines of two services.

python generate.py [NSQD]        # 127.0.0.1:4150
"""

from __future__ import annotations

import random
import sys
from datetime import UTC, datetime, timedelta

from nsqx.client.blocking import Producer

SERVICES = ("shop", "billing")
LEVELS = ("DEBUG", "INFO", "INFO", "INFO", "WARNING", "ERROR")


def lines(count: int, rng: random.Random) -> list[bytes]:
    """Return log lines with a time, a level and a text."""
    time = datetime(2026, 11, 15, 8, tzinfo=UTC)
    made = []
    for number in range(count):
        time += timedelta(milliseconds=rng.randrange(1000))
        made.append(f"{time.isoformat()} {rng.choice(LEVELS)} request {number} took {rng.randrange(500)} ms".encode())
    return made


def main() -> None:
    """Publish to log.shop and log.billing."""
    address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:4150"
    rng = random.Random(1)
    with Producer(address) as producer:
        for service in SERVICES:
            producer.publish_many(f"log.{service}", lines(300, rng))
            print(f"published 300 lines to log.{service}")


if __name__ == "__main__":
    main()
