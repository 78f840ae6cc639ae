"""One process with many clients: producers and consumers that connect, misbehave, disconnect and connect again.

The clients use the package's frame parser and no other part of its client, so that thousands of connections need little
CPU time. At the end the process returns its accounts.
"""

import asyncio
import random
import resource
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from typing import Any

import uvloop
from accounts import Accounts, pick_size, write_body

from nsqx.wire import responses
from nsqx.wire.responses import FrameReader
from rawclient import MAGIC, dpub, fin, identify, mpub, pub, rdy, req, sub, touch

MAX_BACK_OFF_S = 2.0
CONNECTS_PER_S = 500.0


@dataclass(frozen=True)
class Plan:
    """The task of one process."""

    origin: int
    port: int
    topics: int
    channels: int
    producers: int
    consumers: int
    messages_per_s: float
    lifetime_s: float
    """The average time until a client closes its connection."""
    msg_timeout_ms: int
    seed: int


@dataclass
class Counts:
    """The number of events in one process."""

    connected: int = 0
    most_connected: int = 0
    connects: int = 0
    breaks: int = 0
    requeued: int = 0
    touched: int = 0
    left_to_time_out: int = 0
    held: int = 0
    stopped_reading: int = 0
    refusals: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    """Errors in the clients themselves."""


class ClientGroup:
    """All clients of the process, and their shared state."""

    def __init__(self, plan: Plan, share: Any) -> None:
        self.plan = plan
        self.random = random.Random(plan.seed)
        self.accounts = Accounts()
        self.counts = Counts()
        self.share = share
        self.is_draining = False
        """True at the end: producers publish nothing, and consumers finish every message."""
        self.is_over = False
        self.clients: list[Client] = []

    async def run(self, pipe: Pipe) -> None:
        plan = self.plan
        loop = asyncio.get_running_loop()
        for index in range(plan.producers + plan.consumers):
            kind = Producer if index < plan.producers else Consumer
            self.clients.append(kind(self, index))
        tasks = [loop.create_task(client.live()) for client in self.clients]
        tasks.append(loop.create_task(self._break_connections()))
        while not self.is_over:
            command = await loop.run_in_executor(None, pipe.recv)
            if command == "drain":
                self.is_draining = True
                for client in self.clients:
                    client.start_drain()
            elif command == "count":
                pipe.send(self.counts)
            else:
                self.is_over = True
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                self.counts.failures.append(repr(outcome))
        pipe.send((self.accounts, self.counts))

    async def _break_connections(self) -> None:
        """Close random connections, some of them with a reset."""
        while True:
            await asyncio.sleep(self.random.expovariate(len(self.clients) / self.plan.lifetime_s))
            if not self.is_draining:
                self.random.choice(self.clients).break_off()


class Client:
    """One client with a series of connections."""

    def __init__(self, group: ClientGroup, index: int) -> None:
        self.group = group
        self.index = index
        self.topic = index % group.plan.topics
        self.random = random.Random(group.plan.seed * 100_003 + index)
        self.transport: Any = None
        self.reader = FrameReader()
        self.lost = asyncio.Event()

    async def live(self) -> None:
        """Connect, and connect again whenever the connection is lost."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self.random.random() * len(self.group.clients) / CONNECTS_PER_S)
        while True:
            try:
                await loop.create_connection(lambda: self, "127.0.0.1", self.group.plan.port)  # type: ignore[arg-type, return-value]
            except OSError:
                pass
            else:
                await self.use()
                await self.lost.wait()
            await asyncio.sleep(0.05 + self.random.random() * MAX_BACK_OFF_S)

    async def use(self) -> None:
        """Use a new connection; does nothing by default."""

    def break_off(self) -> None:
        """Close the connection, half of the time with a reset."""
        if self.transport is not None:
            self.group.counts.breaks += 1
            self.transport.abort() if self.random.random() < 0.5 else self.transport.close()

    def start_drain(self) -> None:
        """Stop misbehaving; does nothing by default."""

    def on_event(self, event: int) -> None:
        """Handle a frame; does nothing by default."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.reader = FrameReader()
        self.lost.clear()
        counts = self.group.counts
        counts.connects += 1
        counts.connected += 1
        counts.most_connected = max(counts.most_connected, counts.connected)

    def connection_lost(self, _error: Exception | None) -> None:
        self.transport = None
        self.group.counts.connected -= 1
        self.lost.set()

    def data_received(self, data: bytes) -> None:
        reader = self.reader
        reader.feed(data)
        while (event := reader.next()) != responses.NEED_DATA:
            if event == responses.HEARTBEAT:
                self.send(b"NOP\n")
                continue
            if event == responses.ERROR:
                code = reader.data.split(b" ", 1)[0].decode()
                refusals = self.group.counts.refusals
                refusals[code] = refusals.get(code, 0) + 1
            self.on_event(event)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def send(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)


class Producer(Client):
    """Publishes to one topic, one message or several at a time, some of them deferred."""

    def __init__(self, group: ClientGroup, index: int) -> None:
        super().__init__(group, index)
        self._answers: asyncio.Queue[bool] = asyncio.Queue()

    async def use(self) -> None:
        self._answers = asyncio.Queue()
        self.send(MAGIC)
        plan = self.group.plan
        mean_s = plan.producers * 4.0 / plan.messages_per_s  # four messages at a time, on average
        while self.transport is not None:
            await asyncio.sleep(self.random.expovariate(1 / mean_s))
            if self.group.is_draining or self.group.share.value <= 0:
                continue
            await self._publish()

    async def _publish(self) -> None:
        plan, accounts = self.group.plan, self.group.accounts
        choice = self.random.random()
        count = self.random.randint(2, 25) if choice < 0.23 else 1
        numbers = [accounts.next_number(self.topic, plan.origin) for _ in range(count)]
        bodies = [write_body(self.topic, plan.origin, number, pick_size(self.random)) for number in numbers]
        accounts.sent_bytes += sum(map(len, bodies))
        name = f"soak{self.topic}"
        is_deferred = count == 1 and choice < 0.35
        if count > 1:
            self.send(mpub(name, bodies))
        elif is_deferred:
            self.send(dpub(name, self.random.randint(50, 5000), bodies[0]))
        else:
            self.send(pub(name, bodies[0]))
        if await self._answers.get():
            for number in numbers:
                accounts.acked(self.topic, plan.origin, number, is_deferred=is_deferred)

    def on_event(self, event: int) -> None:
        if event == responses.OK_RUN:
            for _ in range(self.reader.count):
                self._answers.put_nowait(True)
        else:
            self._answers.put_nowait(False)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._answers.put_nowait(False)


class Consumer(Client):
    """Consumes one channel. Most consumers finish at once; some are slow, requeue, never answer, or stop reading."""

    def __init__(self, group: ClientGroup, index: int) -> None:
        super().__init__(group, index)
        self.channel = (index // group.plan.topics) % group.plan.channels
        self._is_slow = self.random.random() < 0.05
        self._stops_reading = self.random.random() < 0.02

    async def use(self) -> None:
        ready = self.random.choice((1, 2, 5, 20))
        plan = self.group.plan
        self.send(MAGIC + identify(client_id=f"soak-{plan.origin}-{self.index}", msg_timeout=plan.msg_timeout_ms))
        self.send(sub(f"soak{self.topic}", f"ch{self.channel}") + rdy(ready))

    def on_event(self, event: int) -> None:
        if event != responses.MESSAGE:
            return
        reader = self.reader
        message_id = reader.message_id()
        self.group.accounts.received(self.topic, self.channel, reader.message_body())
        if self.group.is_draining:
            self.send(fin(message_id))
            return
        choice, counts = self.random.random(), self.group.counts
        if choice < 0.02:
            counts.requeued += 1
            self.send(req(message_id, self.random.choice((0, 0, 100, 2000))))
        elif choice < 0.022:
            counts.left_to_time_out += 1
        elif choice < 0.03:
            counts.touched += 1
            self.send(touch(message_id))
            self._finish_later(message_id, 0.5)
        elif self._is_slow:
            counts.held += 1
            self._finish_later(message_id, self.random.uniform(0.2, 3.0))
        else:
            self.send(fin(message_id))
        if self._stops_reading and choice > 0.9:
            self._stop_reading()

    def _finish_later(self, message_id: bytes, delay_s: float) -> None:
        held_on = self.transport
        loop = asyncio.get_running_loop()
        loop.call_later(delay_s, lambda: self.send(fin(message_id)) if self.transport is held_on else None)

    def _stop_reading(self) -> None:
        """Read nothing for a while, so that nsqd's socket fills up."""
        paused = self.transport
        if paused is not None and not paused.is_closing():
            self.group.counts.stopped_reading += 1
            paused.pause_reading()
            asyncio.get_running_loop().call_later(self.random.uniform(2, 15), self._read_again, paused)

    def _read_again(self, paused: Any) -> None:
        if self.transport is paused and not paused.is_closing():
            paused.resume_reading()

    def start_drain(self) -> None:
        self._stops_reading = self._is_slow = False


def run_client_group(plan: Plan, share: Any, pipe: Pipe) -> None:
    """Run all clients of this process until the end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard) if soft < hard else (soft, hard))
    uvloop.run(ClientGroup(plan, share).run(pipe))
