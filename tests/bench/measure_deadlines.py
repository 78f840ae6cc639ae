"""Measures how long the calls of the client take while nsqd or nsqlookupd is dead, frozen, slow or half open.

    python tests/bench/measure_deadlines.py

Each call has a deadline of a second. The table has the time of each call in seconds, and what came of it. "dead" is a
process that was killed, "frozen" one that was stopped with SIGSTOP, "slow" is behind a proxy that delays every byte by
5 seconds, and "half open" behind one that drops all bytes. Clients of the rows "open" are connected before that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from daemons import Daemon, start_nsqd, start_nsqlookupd  # noqa: E402
from nsqx import Consumer, Producer, Reader, blocking  # noqa: E402
from partition_proxy import Proxy  # noqa: E402

DEADLINE_S = 1.0
DELAY_S = 5.0
STATES = ("dead", "frozen", "slow", "half open")
TOPIC = "deadlines"


@contextlib.contextmanager
def reachable(state: str, start: Callable[[], Daemon], port: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the address of a new daemon, and a function that brings it into the state."""
    with start() as daemon, Proxy(getattr(daemon, port)) as proxy:
        address = getattr(daemon, port) if state in ("dead", "frozen") else proxy.address

        def fail() -> None:
            if state == "dead":
                daemon.kill()
            elif state == "frozen":
                daemon.process.send_signal(signal.SIGSTOP)
            elif state == "slow":
                proxy.delay(DELAY_S)
            else:
                proxy.blackhole()

        try:
            yield address, fail
        finally:
            if state == "frozen":
                daemon.process.send_signal(signal.SIGCONT)


async def timed(call: Awaitable[Any]) -> str:
    """Return the duration and the outcome of a call."""
    began_s = time.perf_counter()
    try:
        async with asyncio.timeout(60):
            await call
        outcome = "returns"
    except Exception as error:
        outcome = type(error).__name__
    return f"{time.perf_counter() - began_s:.2f} {outcome}"


def start_log_nsqd() -> Daemon:
    return start_nsqd("nsqx", "--store=log")


async def new_clients(state: str) -> dict[str, str]:
    """Measure clients that start while nsqd is in the state."""
    found: dict[str, str] = {}
    with reachable(state, start_log_nsqd, "tcp_address") as (address, fail):
        fail()
        options: dict[str, Any] = {"start_timeout": DEADLINE_S}
        producer = Producer(address, publish_timeout=DEADLINE_S, **options)
        found["`Producer.start`"] = await timed(producer.start())
        found["`publish`, not connected"] = await timed(producer.publish(TOPIC, b"x"))
        found["`Producer.close`, not connected"] = await timed(producer.close(DEADLINE_S))
        consumer = Consumer(TOPIC, "c", print, nsqd_tcp_addresses=address, **options)
        found["`Consumer.start`"] = await timed(consumer.start())
        found["`Consumer.stop`, not connected"] = await timed(consumer.stop(DEADLINE_S))
        made: list[blocking.Producer] = []
        work = asyncio.to_thread(lambda: made.append(blocking.Producer(address, publish_timeout=DEADLINE_S, **options)))
        found["`blocking.Producer()`"] = await timed(work)
        found["blocking `publish`, not connected"] = await timed(asyncio.to_thread(made[0].publish, TOPIC, b"x"))
        found["blocking `close`, not connected"] = await timed(asyncio.to_thread(made[0].close, DEADLINE_S))
    return found


async def open_clients(state: str) -> dict[str, str]:
    """Measure clients that are connected when nsqd comes into the state."""
    found: dict[str, str] = {}
    with reachable(state, start_log_nsqd, "tcp_address") as (address, fail):
        producer, closed = (Producer(address, publish_timeout=DEADLINE_S) for _ in range(2))
        consumer = Consumer(TOPIC, "c", print, nsqd_tcp_addresses=address)
        sync = await asyncio.to_thread(blocking.Producer, address, publish_timeout=DEADLINE_S)
        await asyncio.gather(producer.start(), closed.start(), consumer.start())
        await producer.publish(TOPIC, b"x", timeout=30)
        fail()
        found["`publish`, open"] = await timed(producer.publish(TOPIC, b"x"))
        found["`publish_many`, open"] = await timed(producer.publish_many(TOPIC, [b"x", b"y"]))
        found["`publish_deferred`, open"] = await timed(producer.publish_deferred(TOPIC, b"x", 1))
        found["blocking `publish`, open"] = await timed(asyncio.to_thread(sync.publish, TOPIC, b"x"))
        left = closed.publish(TOPIC, b"x")
        found["`Producer.close` with a publish, open"] = await timed(closed.close(DEADLINE_S))
        await asyncio.gather(left, return_exceptions=True)
        found["`Consumer.stop`, open"] = await timed(consumer.stop(DEADLINE_S))
        found["blocking `close`, open"] = await timed(asyncio.to_thread(sync.close, DEADLINE_S))
        await producer.close(0)
    return found


async def readers(state: str) -> dict[str, str]:
    """Measure readers, which use HTTP."""
    found: dict[str, str] = {}
    with reachable(state, start_log_nsqd, "http_address") as (address, fail):
        fail()
        reader = Reader(TOPIC, nsqd_http_addresses=address, start_timeout=DEADLINE_S)
        found["`Reader.start`"] = await timed(reader.start())
        found["`Reader.read`"] = await timed(reader.read(1, DEADLINE_S))
        found["`Reader.close`"] = await timed(reader.close())
    return found


async def discovering_clients(state: str) -> dict[str, str]:
    """Measure clients whose nsqlookupd is in the state."""
    found: dict[str, str] = {}
    with reachable(state, lambda: start_nsqlookupd("nsqx"), "http_address") as (address, fail):
        fail()
        options: dict[str, Any] = {"start_timeout": DEADLINE_S, "lookupd_http_addresses": address}
        producer = Producer(publish_timeout=DEADLINE_S, **options)
        found["`Producer.start`, nsqlookupd"] = await timed(producer.start())
        found["`publish`, nsqlookupd"] = await timed(producer.publish(TOPIC, b"x"))
        found["`Producer.close`, nsqlookupd"] = await timed(producer.close(DEADLINE_S))
        consumer = Consumer(TOPIC, "c", print, **options)
        found["`Consumer.start`, nsqlookupd"] = await timed(consumer.start())
        found["`Consumer.stop`, nsqlookupd"] = await timed(consumer.stop(DEADLINE_S))
    return found


async def measure() -> dict[str, dict[str, str]]:
    """Return the outcomes by call and state."""
    table: dict[str, dict[str, str]] = {}
    for state in STATES:
        for part in (new_clients, open_clients, readers, discovering_clients):
            for call, outcome in (await part(state)).items():
                table.setdefault(call, {})[state] = outcome
    return table


def main() -> int:
    logging.getLogger("nsqx.client").setLevel(logging.CRITICAL)
    table = asyncio.run(measure())
    print(f"| call | {' | '.join(STATES)} |")
    print("|---|" + "---|" * len(STATES))
    for call, row in table.items():
        print(f"| {call} | {' | '.join(row[state] for state in STATES)} |")
    slowest_s = max(float(outcome.partition(" ")[0]) for row in table.values() for outcome in row.values())
    print(f"\nthe slowest call took {slowest_s:.2f} s; the deadline is {DEADLINE_S:g} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
