"""One process full of clients: producers and consumers of many kinds, which come, misbehave, vanish and come again.

Speaks NSQ's protocol by the package's own reader of frames and nothing else of its client, so that thousands of
connections cost little. Ends with its accounts.
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
    """What one process is to do."""

    origin: int
    port: int
    topics: int
    channels: int
    producers: int
    consumers: int
    messages_per_s: float
    lifetime_s: float
    """How long a connection lives, on average, until its client breaks it off."""
    msg_timeout_ms: int
    seed: int


@dataclass
class Counts:
    """What has happened in one process."""

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
    """Mistakes of the crowd itself."""


class Crowd:
    """All clients of the process, and what they share."""

    def __init__(self, plan: Plan, share: Any) -> None:
        self.plan = plan
        self.random = random.Random(plan.seed)
        self.accounts = Accounts()
        self.counts = Counts()
        self.share = share
        self.is_calm = False
        """True at the end: nobody publishes, everybody finishes what comes."""
        self.is_over = False
        self.clients: list[Client] = []

    async def run(self, pipe: Pipe) -> None:
        plan = self.plan
        loop = asyncio.get_running_loop()
        for index in range(plan.producers + plan.consumers):
            kind = Producer if index < plan.producers else Consumer
            self.clients.append(kind(self, index))
        tasks = [loop.create_task(client.live()) for client in self.clients]
        tasks.append(loop.create_task(self._mischief()))
        while not self.is_over:
            command = await loop.run_in_executor(None, pipe.recv)
            if command == "calm":
                self.is_calm = True
                for client in self.clients:
                    client.calm_down()
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

    async def _mischief(self) -> None:
        """Connections end all the time; some of them without a word."""
        while True:
            await asyncio.sleep(self.random.expovariate(len(self.clients) / self.plan.lifetime_s))
            if not self.is_calm:
                self.random.choice(self.clients).break_off()


class Client:
    """One client, over all its connections."""

    def __init__(self, crowd: Crowd, index: int) -> None:
        self.crowd = crowd
        self.index = index
        self.topic = index % crowd.plan.topics
        self.random = random.Random(crowd.plan.seed * 100_003 + index)
        self.transport: Any = None
        self.reader = FrameReader()
        self.lost = asyncio.Event()

    async def live(self) -> None:
        """Connect, and again whenever the connection is gone."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self.random.random() * len(self.crowd.clients) / CONNECTS_PER_S)
        while True:
            try:
                await loop.create_connection(lambda: self, "127.0.0.1", self.crowd.plan.port)  # type: ignore[arg-type, return-value]
            except OSError:
                pass
            else:
                await self.use()
                await self.lost.wait()
            await asyncio.sleep(0.05 + self.random.random() * MAX_BACK_OFF_S)

    async def use(self) -> None:
        """What to do with a new connection."""

    def break_off(self) -> None:
        """Leave, half of the time without a word."""
        if self.transport is not None:
            self.crowd.counts.breaks += 1
            self.transport.abort() if self.random.random() < 0.5 else self.transport.close()

    def calm_down(self) -> None:
        """From now on, behave."""

    def on_event(self, event: int) -> None:
        """A frame has come."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.reader = FrameReader()
        self.lost.clear()
        counts = self.crowd.counts
        counts.connects += 1
        counts.connected += 1
        counts.most_connected = max(counts.most_connected, counts.connected)

    def connection_lost(self, _error: Exception | None) -> None:
        self.transport = None
        self.crowd.counts.connected -= 1
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
                refusals = self.crowd.counts.refusals
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

    def __init__(self, crowd: Crowd, index: int) -> None:
        super().__init__(crowd, index)
        self._answers: asyncio.Queue[bool] = asyncio.Queue()

    async def use(self) -> None:
        self._answers = asyncio.Queue()
        self.send(MAGIC)
        plan = self.crowd.plan
        mean_s = plan.producers * 4.0 / plan.messages_per_s  # four messages at a time, on average
        while self.transport is not None:
            await asyncio.sleep(self.random.expovariate(1 / mean_s))
            if self.crowd.is_calm or self.crowd.share.value <= 0:
                continue
            await self._publish()

    async def _publish(self) -> None:
        plan, accounts = self.crowd.plan, self.crowd.accounts
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
    """Takes one channel's messages: most finish at once, some are slow, requeue, forget, or stop reading."""

    def __init__(self, crowd: Crowd, index: int) -> None:
        super().__init__(crowd, index)
        self.channel = (index // crowd.plan.topics) % crowd.plan.channels
        self._is_slow = self.random.random() < 0.05
        self._stops_reading = self.random.random() < 0.02

    async def use(self) -> None:
        ready = self.random.choice((1, 2, 5, 20))
        plan = self.crowd.plan
        self.send(MAGIC + identify(client_id=f"soak-{plan.origin}-{self.index}", msg_timeout=plan.msg_timeout_ms))
        self.send(sub(f"soak{self.topic}", f"ch{self.channel}") + rdy(ready))

    def on_event(self, event: int) -> None:
        if event != responses.MESSAGE:
            return
        reader = self.reader
        message_id = reader.message_id()
        self.crowd.accounts.received(self.topic, self.channel, reader.message_body())
        if self.crowd.is_calm:
            self.send(fin(message_id))
            return
        choice, counts = self.random.random(), self.crowd.counts
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
        """The socket fills up on nsqd's side, for a while."""
        paused = self.transport
        if paused is not None and not paused.is_closing():
            self.crowd.counts.stopped_reading += 1
            paused.pause_reading()
            asyncio.get_running_loop().call_later(self.random.uniform(2, 15), self._read_again, paused)

    def _read_again(self, paused: Any) -> None:
        if self.transport is paused and not paused.is_closing():
            paused.resume_reading()

    def calm_down(self) -> None:
        self._stops_reading = self._is_slow = False


def run_crowd(plan: Plan, share: Any, pipe: Pipe) -> None:
    """The whole life of the process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard) if soft < hard else (soft, hard))
    uvloop.run(Crowd(plan, share).run(pipe))
