"""Publish the orders of ten invented minutes.

python generate.py [NSQD]        # 127.0.0.1:4150
"""

from __future__ import annotations

import json
import random
import sys
from datetime import UTC, datetime, timedelta

from nsqx.client.blocking import Producer

PRODUCTS = ("shoes", "hat", "scarf")


def orders(rng: random.Random) -> list[bytes]:
    """Return one order for every two seconds."""
    start = datetime(2026, 11, 15, 8, tzinfo=UTC)
    made = []
    for number in range(301):
        order = {
            "order": number,
            "product": rng.choice(PRODUCTS),
            "amount": round(rng.uniform(5, 100), 2),
            "time": (start + timedelta(seconds=2 * number)).isoformat(),
        }
        made.append(json.dumps(order).encode())
    return made


def main() -> None:
    """Publish all orders."""
    address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:4150"
    messages = orders(random.Random(1))
    with Producer(address) as producer:
        producer.publish_many("orders", messages)
    print(f"published {len(messages)} messages to orders")


if __name__ == "__main__":
    main()
