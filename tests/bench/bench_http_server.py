"""Measures how many requests per second the HTTP server answers: POST of 200 bytes on kept-alive connections.

    python tests/bench/bench_http_server.py [--seconds 5] [--connections 32] [--depth 1] [--loop uvloop|asyncio]

The server runs in a separate process. This process sends the requests; for each response it only counts bytes. With two
idle cores the server is the bottleneck. ``per CPU second`` divides by the CPU time of the server, so it is also useful
on a busy machine. The program prints results and asserts nothing.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import cast

import uvloop

from nsqx.net.address import TCPAddress
from nsqx.net.http_server import HTTPServer
from nsqx.net.listen import bind
from nsqx.net.requests import DEFERRED, DeferredAnswer, Request
from nsqx.net.responses import OK, Response
from nsqx.net.router import Router

BODY = b"x" * 200
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}


class QuietLog:
    info_enabled = False

    def error(self, text: str) -> None:
        print(text)

    def info(self, text: str) -> None:
        pass

    def debug(self, text: str) -> None:
        pass


class Handlers:
    """A handler that responds at once, and one that responds at the end of the turn, as /pub does."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[Request] = []

    def answer(self, request: Request) -> Response:
        assert request.query["topic"]
        assert request.body
        return OK

    def defer(self, request: Request) -> DeferredAnswer:
        if not self._waiting:
            self._loop.call_soon(self._end_turn)
        self._waiting.append(request)
        return DEFERRED

    def _end_turn(self) -> None:
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            request.respond(OK)


async def serve(pipe: Connection) -> None:
    loop = asyncio.get_running_loop()
    handlers = Handlers(loop)
    router = Router()
    router.add("POST", "/pub", handlers.answer, logged=False)
    router.add("POST", "/deferred", handlers.defer, logged=False)
    server = HTTPServer(router, QuietLog())
    await server.serve(await bind(TCPAddress("127.0.0.1", 0)))
    pipe.send(server.port)
    while True:
        # Each object from the pipe is a request for the CPU time so far. The server ends when the pipe is closed.
        await loop.run_in_executor(None, pipe.poll, None)
        try:
            pipe.recv()
        except EOFError:
            break
        pipe.send(time.process_time())
    await server.close(0)


def run_server(loop_name: str, pipe: Connection, other_end: Connection) -> None:
    other_end.close()
    with asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
        runner.run(serve(pipe))


class Load(asyncio.Protocol):
    """Keeps ``depth`` requests pending on one connection until ``stopped`` is set."""

    def __init__(self, requests: "Requests", depth: int, answer_size: int) -> None:
        self._requests = requests
        self._depth = depth
        self._answer_size = answer_size
        self._received = 0
        self.answers = 0
        self.stopped = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(self._requests.take(self._depth))

    def data_received(self, data: bytes) -> None:
        answers, self._received = divmod(self._received + len(data), self._answer_size)
        self.answers += answers
        if answers and not self.stopped:
            self.transport.write(self._requests.take(answers))


class Requests:
    """The requests to send: all with the same head, or each with a different head."""

    def __init__(self, path: str, *, same: bool) -> None:
        self._path = path
        self._same = same
        self._number = 0
        self._fixed = self._make("t")

    def _make(self, topic: str) -> bytes:
        head = (
            f"POST {self._path}?topic={topic} HTTP/1.1\r\nHost: 127.0.0.1:4151\r\nUser-Agent: bench/1.0\r\n"
            f"Accept: */*\r\nContent-Type: application/octet-stream\r\nContent-Length: {len(BODY)}\r\n\r\n"
        )
        return head.encode() + BODY

    def take(self, count: int) -> bytes:
        if self._same:
            return self._fixed * count
        self._number += count
        return b"".join(self._make(f"t{number}") for number in range(self._number - count, self._number))


async def measure(
    port: int, pipe: Connection, requests: Requests, arguments: argparse.Namespace
) -> tuple[float, float]:
    """Return the responses per second of elapsed time and per second of the server's CPU time."""
    loop = asyncio.get_running_loop()
    loads = []
    for _ in range(arguments.connections):
        _, load = await loop.create_connection(
            lambda: Load(requests, arguments.depth, len(OK.wire())), "127.0.0.1", port
        )
        loads.append(load)
    await asyncio.sleep(0.5)
    pipe.send(None)
    cpu_s = -pipe.recv()
    start = time.perf_counter()
    answers = -sum(load.answers for load in loads)
    await asyncio.sleep(arguments.seconds)
    elapsed_s = time.perf_counter() - start
    answers += sum(load.answers for load in loads)
    pipe.send(None)
    cpu_s += pipe.recv()
    for load in loads:
        load.stopped = True
        load.transport.abort()
    return answers / elapsed_s, answers / cpu_s


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the HTTP server.")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--depth", type=int, default=1, help="pending requests on a connection")
    parser.add_argument("--loop", choices=LOOPS, default="uvloop", help="the server's event loop")
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=run_server, args=(arguments.loop, theirs, ours), daemon=True)
    server.start()
    theirs.close()
    port = ours.recv()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            for name, requests in {
                "response at once": Requests("/pub", same=True),
                "response at the end of the turn": Requests("/deferred", same=True),
                "a different head each time": Requests("/pub", same=False),
            }.items():
                by_clock, by_cpu = runner.run(measure(port, ours, requests, arguments))
                print(f"{name:32} {by_clock:9,.0f} requests/s   {by_cpu:9,.0f} per CPU second of the server")
    finally:
        ours.close()
        server.join(5)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
