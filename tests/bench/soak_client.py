"""Sends a million messages through connections that break, and counts lost and repeated messages.

      python tests/bench/soak_client.py [--nsqd go|nsqx] [--messages 1000000] [--cut-within 1.0] [--option snappy]

A producer and a consumer are connected to nsqd through a proxy that cuts every connection at random times. The exit
status is 1 if a message was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from daemons import start_nsqd
from nsqx import Consumer, Message, Producer, read_option_flags
from proxy import Proxy

WINDOW = 2000


async def soak(address: str, arguments: argparse.Namespace) -> int:
    """Publish and consume the messages. Return the number of lost messages."""
    counts: Counter[bytes] = Counter()
    everything = asyncio.Event()
    options = read_option_flags(arguments.option)

    def handle(message: Message) -> None:
        counts[message.body] += 1
        if len(counts) == arguments.messages:
            everything.set()

    async with Proxy(address) as proxy:
        consumer = Consumer(
            "soak",
            "ch",
            handle,
            nsqd_tcp_addresses=proxy.address,
            max_in_flight=2500,
            max_attempts=0,
            lookupd_poll_interval="50ms",
            **options,
        )
        started_s = time.perf_counter()
        producer = Producer(proxy.address, retry_delay="10ms", max_publish_attempts=1000, **options)
        async with producer, consumer:
            cutting = asyncio.create_task(proxy.keep_cutting(random.Random(arguments.seed), arguments.cut_within))
            for start in range(0, arguments.messages, WINDOW):
                numbers = range(start, min(start + WINDOW, arguments.messages))
                await asyncio.gather(*(producer.publish("soak", b"%d" % number) for number in numbers))
            published_s = time.perf_counter() - started_s
            try:
                await asyncio.wait_for(everything.wait(), arguments.patience)
            except TimeoutError:
                pass
            cutting.cancel()
        lost = arguments.messages - len(counts)
        print(
            f"{arguments.messages:,} messages published in {published_s:.1f} s, consumed in"
            f" {time.perf_counter() - started_s:.1f} s over {proxy.connection_count:,} connections:"
            f" {lost:,} lost, {counts.total() - len(counts):,} repeated"
        )
    return lost


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nsqd", choices=["go", "nsqx"], default="nsqx")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--cut-within", type=float, default=1.0, help="the longest time between cuts, in seconds")
    parser.add_argument("--patience", type=float, default=300.0, help="how long to wait for the last message")
    parser.add_argument("--option", action="append", default=[], help="a client option: name,value")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with start_nsqd(arguments.nsqd, "--msg-timeout=2s", "--mem-queue-size=2000000") as daemon:
        return 1 if uvloop.run(soak(daemon.tcp_address, arguments)) else 0


if __name__ == "__main__":
    sys.exit(main())
