"""Measures time and memory of nsqlookupd's operations with many peers and topics. Prints results, asserts nothing.

    python tests/bench/bench_registry.py [--peers 1000] [--topics 1000] [--channels 0]

Every peer registers every topic. Sessions receive the commands as bytes, as from a socket. The real handlers create the
HTTP responses, including the bytes of their bodies.
"""

import argparse
import asyncio
import gc
import io
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

from nsqx.log import ERROR, Log
from nsqx.net.responses import Response, StreamedResponse
from nsqx.nsqlookupd.http import LookupdQueryAPI
from nsqx.nsqlookupd.lookupd import Lookupd
from nsqx.nsqlookupd.options import NsqlookupdOptions
from nsqx.nsqlookupd.session import PeerSession
from nsqx.wire.lookup import MAGIC, PING, Announcement, encode_identify, encode_register

REPEATS = 200


class RequestStandIn:
    def __init__(self, **query: str) -> None:
        self.query = query
        self.headers: dict[bytes, bytes] = {}


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def report(what: str, seconds: float, count: int, extra: str = "") -> None:
    print(f"{what:<34}{seconds:>10.3f} s {seconds / count * 1e6:>12.2f} us each  {extra}")


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start, result


def connect(lookupd: Lookupd, number: int) -> PeerSession:
    session = PeerSession(lookupd, f"10.0.{number // 250}.{number % 250}:4150")
    session.receive(MAGIC + encode_identify(Announcement(f"nsqd{number}.example", 4150, 4151, "1.3.0", f"h{number}")))
    assert session.peer is not None
    return session


def registration_commands(topic_count: int, channel_count: int) -> list[bytes]:
    """Return the commands of one peer in pieces of 64 KiB, as from a socket."""
    topics = [f"topic.number.{number}" for number in range(topic_count)]
    commands = [encode_register(topic) for topic in topics]
    commands += [encode_register(topic, f"channel{number}") for topic in topics for number in range(channel_count)]
    data = b"".join(commands)
    return [data[start : start + 65536] for start in range(0, len(data), 65536)]


async def with_longest_pause(awaitable: Any) -> tuple[float, Any]:
    """Return the longest time that the event loop was blocked, and the result."""
    task = asyncio.ensure_future(awaitable)
    longest = 0.0
    while not task.done():
        start = time.perf_counter()
        await asyncio.sleep(0)
        longest = max(longest, time.perf_counter() - start)
    return longest, task.result()


async def body_size(answer: Awaitable[Response | StreamedResponse]) -> int:
    response = await answer
    if isinstance(response, StreamedResponse):
        return sum([len(chunk) async for chunk in response.pieces])
    return len(response.body)


def measure_listing(what: str, handler: Callable[[Any], Any]) -> None:
    seconds, (pause, size) = timed(lambda: asyncio.run(with_longest_pause(body_size(handler(RequestStandIn())))))
    report(what, seconds, 1, f"{size / 1e6:.1f} MB, longest pause {pause * 1e3:.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", type=int, default=1000)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--channels", type=int, default=0, help="channels of each topic")
    parser.add_argument(
        "--debug", action="store_true", help="also measure /debug, which lists every registration with all fields"
    )
    arguments = parser.parse_args()
    lookupd = Lookupd(NsqlookupdOptions(), Log("", ERROR, io.StringIO()))
    api = LookupdQueryAPI(lookupd)
    commands = registration_commands(arguments.topics, arguments.channels)

    seconds, sessions = timed(lambda: [connect(lookupd, number) for number in range(arguments.peers)])
    report("IDENTIFY", seconds, arguments.peers)

    gc.collect()
    before = resident_bytes()

    def register_all() -> None:
        for session in sessions:
            for piece in commands:
                session.receive(piece)
                while session.has_more:
                    session.proceed()

    pairs = arguments.peers * arguments.topics * (1 + arguments.channels)
    seconds, _ = timed(register_all)
    grown = resident_bytes() - before
    report("REGISTER", seconds, pairs, f"{pairs} pairs, {grown / 1e6:.0f} MB, {grown / pairs:.0f} bytes each")
    seconds, _ = timed(register_all)
    report("REGISTER again", seconds, pairs)
    seconds, _ = timed(lambda: [session.receive(PING) for session in sessions])
    report("PING", seconds, arguments.peers)

    request = RequestStandIn(topic="topic.number.0")
    seconds, answers = timed(lambda: [api.lookup(request) for _ in range(REPEATS)])
    report("/lookup", seconds, REPEATS, f"{len(answers[0].body) / 1e3:.0f} kB")
    seconds, answers = timed(lambda: [api.topics(request) for _ in range(REPEATS)])
    report("/topics", seconds, REPEATS, f"{len(answers[0].body) / 1e3:.0f} kB")
    measure_listing("/nodes", api.nodes)
    if arguments.debug:
        measure_listing("/debug", api.debug)
    seconds, _ = timed(lambda: lookupd.registry.tombstone("topic.number.0", "nsqd0.example:4151"))
    report("tombstone", seconds, 1)
    seconds, _ = timed(gc.collect)
    report("full garbage collection", seconds, 1)

    seconds, _ = timed(lambda: sessions[0].close("EOF"))
    report("one peer disconnects", seconds, 1, f"{arguments.topics} topics")
    seconds, _ = timed(lambda: lookupd.registry.delete_topic("topic.number.0"))
    report("delete a topic", seconds, 1, f"{arguments.peers - 1} producers")
    seconds, _ = timed(lambda: [session.close("EOF") for session in sessions[1:]])
    report("the others disconnect", seconds, max(1, arguments.peers - 1))


if __name__ == "__main__":
    main()
