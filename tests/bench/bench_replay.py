"""Measures the replay of a channel that is moved back to a time, beside the first consumption of the same messages.

    python tests/bench/bench_replay.py [--messages 1000000] [--size 200] [--rounds 3] [--cold] [--directory DIR]

One nsqd with --store=log gets all messages in MPUBs of 200. A second channel that is never consumed keeps them. Then
one consumer finishes everything, POST /channel/seek moves the channel to the time before the first publish, and the
same consumer finishes everything again, ``--rounds`` times.

- messages/s: from the first RDY to the last delivery.
- seek: milliseconds until the answer of the seek by time.
- CPU: microseconds of the process nsqd for each message.

With --cold the files are dropped from the page cache before each consumption. The program asserts that each round
delivers every message, and nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.bench_restart import Nsqd, drop_from_page_cache  # noqa: E402
from nsqx.bench.protocols import (  # noqa: E402
    NSQConsume,
    NSQProtocol,
    connect,
    encode_publish_many,
    introduce,
    receive_frame,
)

TOPIC, CHANNEL, KEEPER = "backlog", "ch", "keeper"
BATCH = 200
READY_COUNT = 2500
READ_SIZE = 1 << 20
TIMEOUT_S = 120.0


def publish(nsqd: Nsqd, count: int, size: int) -> None:
    """Publish ``count`` messages, several MPUBs at a time."""
    body = os.urandom(size)
    with connect(nsqd.tcp) as link:
        link.settimeout(TIMEOUT_S)
        introduce(link, heartbeat_ms=-1)
        while count > 0:
            sent = 0
            while sent < 16 and count > 0:
                part = min(BATCH, count)
                link.sendall(encode_publish_many(TOPIC, [body] * part))
                count -= part
                sent += 1
            for _ in range(sent):
                receive_frame(link)


def consume(nsqd: Nsqd, count: int) -> float:
    """Receive and finish ``count`` messages; return the seconds."""
    consumer = NSQConsume(TOPIC, CHANNEL, READY_COUNT)
    with connect(nsqd.tcp) as link:
        link.settimeout(TIMEOUT_S)
        consumer.greet(link)
        start_s = time.monotonic()
        link.sendall(consumer.begin())
        while consumer.count < count:
            data = link.recv(READ_SIZE)
            assert data, "nsqd closed the connection"
            link.sendall(consumer.take(data, 0))
        duration_s = time.monotonic() - start_s
        assert consumer.count == count, f"{consumer.count} messages instead of {count}"
        while stats(nsqd)["in_flight_count"]:
            time.sleep(0.01)
    return duration_s


def request(nsqd: Nsqd, method: str, target: str) -> bytes:
    """Return the body of an answer."""
    asked = urllib.request.Request(f"http://{nsqd.http}{target}", method=method)
    with urllib.request.urlopen(asked, timeout=TIMEOUT_S) as answer:
        content: bytes = answer.read()
        return content


def stats(nsqd: Nsqd) -> dict[str, int]:
    """Return the counts of the consumed channel."""
    (topic,) = json.loads(request(nsqd, "GET", f"/stats?format=json&topic={TOPIC}&include_clients=false"))["topics"]
    found: dict[str, int] = next(one for one in topic["channels"] if one["channel_name"] == CHANNEL)
    return found


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000, help="number of messages")
    parser.add_argument("--size", type=int, default=200, help="bytes per message")
    parser.add_argument("--rounds", type=int, default=3, help="number of replays")
    parser.add_argument("--cold", action="store_true", help="drop the files from the page cache before each round")
    parser.add_argument("--directory", help="where the data directory is created")
    arguments = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="nsqx-replay-", dir=arguments.directory)
    nsqd = Nsqd("nsqx", [sys.executable, "-m", "nsqx.cli.main", "nsqd", "--store=log"], directory)
    try:
        nsqd.start()
        for channel in (CHANNEL, KEEPER):
            NSQProtocol().make_queue(nsqd.tcp, TOPIC, channel)
        start_ns = time.time_ns()
        publish(nsqd, arguments.messages, arguments.size)
        figures: dict[str, list[tuple[float, float, float]]] = {"first": [], "replay": []}
        for number in range(arguments.rounds + 1):
            seek_ms = 0.0
            if number:
                begin_s = time.monotonic()
                target = f"/channel/seek?topic={TOPIC}&channel={CHANNEL}&to={start_ns}"
                depth = json.loads(request(nsqd, "POST", target))["depth"]
                seek_ms = 1000 * (time.monotonic() - begin_s)
                assert depth == arguments.messages, f"depth {depth} after the seek"
            if arguments.cold:
                drop_from_page_cache(directory)
            cpu_s = nsqd.cpu_s()
            duration_s = consume(nsqd, arguments.messages)
            cost_us = 1e6 * (nsqd.cpu_s() - cpu_s) / arguments.messages
            name = "replay" if number else "first"
            figures[name].append((arguments.messages / duration_s, seek_ms, cost_us))
            print(f"{name}: {figures[name][-1][0]:,.0f} messages/s", file=sys.stderr, flush=True)
    finally:
        nsqd.kill()
        shutil.rmtree(directory)
    print(f"{'':8}{'messages/s':>12}{'seek, ms':>12}{'CPU, us':>12}")
    for name, rows in figures.items():
        rate, seek_ms, cost_us = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"{name:8}{rate:>12,.0f}{seek_ms:>12.1f}{cost_us:>12.2f}")


if __name__ == "__main__":
    main()
