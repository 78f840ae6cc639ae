"""Measures nsqadmin on a large cluster: it polls 100 simulated nsqds with 1,000 topics each.

    python tests/bench/bench_nsqadmin.py [--nodes 100] [--topics 1000] [--channels 1] [--polls 4] [--viewers 20]

The simulated nsqds serve /stats from another process. The program prints the duration of a poll, the longest time that
the poll blocked the event loop, the memory of history and counters, and the cost of viewers. It asserts nothing.
"""

import argparse
import asyncio
import gc
import io
import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from typing import Any

import orjson
import uvloop

from nsqx.log import ERROR, Log
from nsqx.net.address import TCPAddress
from nsqx.net.http_client import request
from nsqx.net.http_server import HTTPServer
from nsqx.net.listen import bind
from nsqx.net.requests import Request
from nsqx.net.responses import JSON, Response, json_response
from nsqx.net.router import Router
from nsqx.nsqadmin.daemon import NsqadminDaemon
from nsqx.nsqadmin.options import NsqadminOptions

VARIANTS = 8
SECOND_NS = 1_000_000_000


def stats(topic_count: int, channel_count: int, step: int) -> bytes:
    """Return a response of /stats whose counters grow with ``step``."""

    def channel(number: int) -> dict[str, Any]:
        return {
            "channel_name": f"channel{number}",
            "depth": 10 + step,
            "backend_depth": 0,
            "in_flight_count": 5,
            "deferred_count": step % 3,
            "message_count": 1000 * step,
            "requeue_count": step,
            "timeout_count": 0,
            "client_count": 2,
            "clients": None,
            "paused": False,
            "e2e_processing_latency": {"count": 0, "percentiles": None},
        }

    topics = [
        {
            "topic_name": f"topic.number.{number}",
            "channels": [channel(each) for each in range(channel_count)],
            "depth": step,
            "backend_depth": 0,
            "message_count": 1000 * step,
            "message_bytes": 200_000 * step,
            "paused": False,
            "e2e_processing_latency": {"count": 0, "percentiles": None},
        }
        for number in range(topic_count)
    ]
    document = {"version": "1.3.0", "health": "OK", "start_time": 1, "topics": topics, "producers": None}
    return orjson.dumps(document)


class SimulatedNsqd:
    """A simulated nsqd that serves /stats and /info."""

    def __init__(self, answers: list[Response], one_topic: Response) -> None:
        self.port = 0
        self._answers = answers
        self._one_topic = one_topic
        self._asked = 0

    def stats(self, request: Request) -> Response:
        if b"topic=" in request.raw_query:
            return self._one_topic
        self._asked += 1
        # After the last step the counters start again, as in an nsqd that was restarted.
        return self._answers[self._asked % VARIANTS]

    def info(self, _request: Request) -> Response:
        fields = {"version": "1.3.0", "broadcast_address": "127.0.0.1", "hostname": "stand-in", "tcp_port": 1}
        return json_response({**fields, "http_port": self.port})


def serve(pipe: Connection, node_count: int, topic_count: int, channel_count: int) -> None:
    async def run() -> None:
        answers = [Response(200, stats(topic_count, channel_count, step), JSON) for step in range(VARIANTS)]
        one_topic = Response(200, stats(1, channel_count, 1), JSON)
        ports = []
        for _ in range(node_count):
            router = Router()
            stand_in = SimulatedNsqd(answers, one_topic)
            router.add("GET", "/stats", stand_in.stats)
            router.add("GET", "/info", stand_in.info)
            server = HTTPServer(router, Log("", ERROR, io.StringIO()))
            await server.serve(await bind(TCPAddress("127.0.0.1", 0)))
            stand_in.port = server.port
            ports.append(server.port)
        pipe.send((ports, len(answers[-1].body)))
        await asyncio.get_running_loop().run_in_executor(None, pipe.recv)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def longest_pause(until: asyncio.Event) -> float:
    """Return the longest time that the event loop was blocked, until the event is set."""
    longest = 0.0
    while not until.is_set():
        start = time.perf_counter()
        await asyncio.sleep(0)
        longest = max(longest, time.perf_counter() - start)
    return longest


async def view(port: int, events: int) -> int:
    """Read ``events`` events of a stream and return their size in bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /api/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    size = seen = 0
    while seen < events:
        data = await reader.read(1 << 20)
        if not data:
            break
        size += len(data)
        seen += data.count(b"\nevent: ")
    writer.close()
    return size


async def measure(arguments: argparse.Namespace, ports: list[int]) -> None:
    options = NsqadminOptions(
        http_address="127.0.0.1:0",
        nsqd_http_addresses=[f"127.0.0.1:{port}" for port in ports],
        poll_interval=int(arguments.interval * SECOND_NS),
        state_file="-",
        log_level=ERROR,
    )
    gc.collect()
    before = resident_bytes()
    daemon = NsqadminDaemon(options, Log("[nsqadmin] ", ERROR))
    await daemon.start()
    poller = daemon.poller
    assert poller is not None
    for number in range(arguments.polls):
        pause = await longest_pause(poller.next_poll)
        await asyncio.sleep(0)
        print(f"poll {number}: {poller.duration_s:.2f} s, longest pause {pause * 1e3:.0f} ms")
    cluster_stats = poller.cluster_stats
    gc.collect()
    grown = resident_bytes() - before
    print(f"{cluster_stats.subject_count} topics and channels, rings {cluster_stats.size_bytes / 1e6:.1f} MB")
    print(f"memory grown by {grown / 1e6:.0f} MB")
    base = f"http://127.0.0.1:{daemon.http_port}"
    for path in ("/api/overview", "/api/overview", "/api/history/topics/topic.number.1"):
        start = time.perf_counter()
        answer = await request("GET", base + path)
        print(f"{path}: {len(answer.body) / 1e3:.0f} kB in {(time.perf_counter() - start) * 1e3:.1f} ms")
    polls_before = cluster_stats.clock.number
    used = time.process_time()
    sizes = await asyncio.gather(*(view(daemon.http_port, 3) for _ in range(arguments.viewers)))
    used = time.process_time() - used
    polls = cluster_stats.clock.number - polls_before
    print(f"{arguments.viewers} viewers for 3 events: {sum(sizes) / 1e6:.1f} MB, {polls} polls, {used:.2f} s of CPU")
    await daemon.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--channels", type=int, default=1, help="channels of each topic")
    parser.add_argument("--polls", type=int, default=4)
    parser.add_argument("--viewers", type=int, default=20)
    parser.add_argument("--interval", type=float, default=1.0, help="seconds")
    arguments = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    wanted = (arguments.nodes, arguments.topics, arguments.channels)
    nsqds = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, *wanted))
    nsqds.start()
    try:
        ports, size = ours.recv()
        print(f"{arguments.nodes} nsqd, /stats of {size / 1e3:.0f} kB each")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(measure(arguments, ports))
    finally:
        ours.send(None)
        nsqds.join()


if __name__ == "__main__":
    main()
