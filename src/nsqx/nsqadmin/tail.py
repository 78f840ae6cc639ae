"""Tail a topic: show its messages as they are published, through an ephemeral channel for each viewer.

A tail subscribes on every nsqd where this takes no message from a consumer (``tail_check.py``). It finishes each
message at once. It shows messages that contain the searched text, at a rate that a viewer can read, and counts the
rest. On a much busier topic it receives only a sample from nsqd. nsqd deletes the channel when the connections close.

The tail reads the state of the topic before it subscribes, again before it raises RDY, and then every two seconds. It
closes a connection as soon as the topic has no other channel that is not ephemeral. It never recreates a deleted topic:
it does not subscribe where the topic does not exist.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from base64 import b64encode
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from nsqx.client.connection import FrameReceiver, NsqdConnection
from nsqx.client.handshake import open_connection
from nsqx.client.options import Options as ClientOptions
from nsqx.errors import ConfigError, NSQError, RequestFailed
from nsqx.nsqadmin.search import Search
from nsqx.nsqadmin.sse import event
from nsqx.nsqadmin.tail_check import refusal
from nsqx.version import VERSION
from nsqx.wire import requests

if TYPE_CHECKING:
    from nsqx.nsqadmin.cluster import ClusterClient
    from nsqx.nsqadmin.tail_check import TopicState
    from nsqx.wire.responses import FrameReader

MAX_PER_S = 50
MAX_BODY_LIMIT = 65536
DEFAULT_BODY_LIMIT = 4096
MAX_SEARCH_LENGTH = 256
# Limit of messages received from nsqd per second, shown or not.
MAX_READ_PER_S = 2000
MAX_READ_BYTES_PER_S = 8 * 1024 * 1024
_READY = 50
_MAX_WAITING = 200
_STATUS_S = 1.0
_DISCOVER_S = 10.0
# Interval between checks that following takes no message from a consumer.
_CHECK_S = 2.0
_NO_NODE = "No nsqd has this topic."


@dataclass(frozen=True, slots=True)
class TailOptions:
    """The topic to follow, with the rate, body size, sample and search text that the viewer chose."""

    topic: str
    per_s: int = MAX_PER_S
    body_limit: int = DEFAULT_BODY_LIMIT
    sample_percent: int = 100
    contains: str = ""


class _Refused(NSQError):
    """The topic must not be followed on one nsqd; the text is the reason."""


class _Source(FrameReceiver):
    """The subscription on one nsqd."""

    def __init__(self, tail: Tail, node: str, connection: NsqdConnection) -> None:
        self._tail = tail
        self._node = node
        self.connection = connection
        self.ready = 0
        self.received = 0
        self.missed = 0
        """Messages that nsqd put into the channel but did not send: sampled out, or over the limit."""

    def set_ready(self, count: int) -> None:
        """Set the number of messages that nsqd may have in flight to this tail (RDY)."""
        self.connection.send(requests.encode_ready(min(count, self.ready)))

    def message(self, reader: FrameReader) -> None:
        self.connection.send(b"FIN %b\n" % reader.message_id())
        self.received += 1
        self._tail.take(self._node, reader)

    def note(self, state: TopicState) -> None:
        """Update the count of missed messages from the channel's counters in an earlier answer to /stats."""
        counts = state.channels.get(self._tail.channel)
        if counts is not None:
            self.missed = max(self.missed, counts.message_count - counts.unfinished - self.received)

    def refusal(self, text: str) -> None:
        if not text.startswith("E_FIN_FAILED"):
            self._tail.problems[self._node] = text

    def lost(self, error: Exception | None) -> None:
        self._tail.lost(self._node, error)


class Tail:
    """The tail of one viewer."""

    def __init__(
        self,
        cluster: ClusterClient,
        options: TailOptions,
        clock_s: Any = time.monotonic,
        client_options: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """``client_options`` are options of the client library, such as TLS and authentication."""
        self.channel = f"nsqadmin-tail-{secrets.token_hex(6)}#ephemeral"
        self.problems: dict[str, str] = {}
        """The reason why a node is not followed, by node; the empty key holds problems of the whole cluster."""
        self._cluster = cluster
        self._options = options
        self._client_options = client_options
        self._clock_s = clock_s
        self._search = Search(options.contains)
        self._sources: dict[str, _Source] = {}
        self._targets: dict[str, str] = {}
        """The nsqds that have the topic: TCP address by HTTP address."""
        self._paused: set[str] = set()
        self._discovered_s = -_DISCOVER_S
        self._waiting: deque[dict[str, Any]] = deque()
        self._has_news = asyncio.Event()
        self._received = 0
        self._matched = 0
        self._dropped = 0
        self._missed_before = 0
        self._allowance = float(options.per_s)
        self._refilled_s = clock_s()
        self._read_count = 0
        self._read_bytes = 0
        self._second_s = self._refilled_s
        self._pause: asyncio.TimerHandle | None = None

    # Called by the connections

    def take(self, node: str, reader: FrameReader) -> None:
        """Keep a received message for the viewer, or count it."""
        self._received += 1
        now_s = self._clock_s()
        message_id = reader.message_id().decode("latin-1")
        body = reader.message_body()
        self._limit_reading(now_s, len(body))
        if not self._search.finds(message_id, body):
            return
        self._matched += 1
        self._allowance = min(
            float(self._options.per_s), self._allowance + (now_s - self._refilled_s) * self._options.per_s
        )
        self._refilled_s = now_s
        if self._allowance < 1 or len(self._waiting) >= _MAX_WAITING:
            self._dropped += 1
            return
        self._allowance -= 1
        self._waiting.append(
            {
                "node": node,
                "id": message_id,
                "timestamp_ns": str(reader.message_timestamp()),
                "attempts": reader.message_attempts(),
                **shown_body(body, self._options.body_limit),
            }
        )
        self._has_news.set()

    def _limit_reading(self, now_s: float, size: int) -> None:
        """Pause reading for the rest of a second in which the limit is reached."""
        if now_s - self._second_s >= 1:
            self._second_s = now_s
            self._read_count = self._read_bytes = 0
        self._read_count += 1
        self._read_bytes += size
        is_enough = self._read_count >= MAX_READ_PER_S or self._read_bytes >= MAX_READ_BYTES_PER_S
        if is_enough and self._pause is None:
            for source in self._sources.values():
                source.set_ready(0)
            wait_s = max(self._second_s + 1 - now_s, 0)
            self._pause = asyncio.get_running_loop().call_later(wait_s, self._resume)

    def _resume(self) -> None:
        self._pause = None
        for source in self._sources.values():
            source.set_ready(_READY)

    def lost(self, node: str, error: Exception | None) -> None:
        """Handle a closed connection."""
        source = self._sources.pop(node, None)
        if source is None:
            return
        self._missed_before += source.missed
        if error is not None:
            self.problems[node] = str(error)

    # Called by the viewer's stream

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield events without end: ``status`` regularly, ``message`` for each message."""
        sent_status: dict[str, Any] = {}
        status_s = 0.0
        checking: asyncio.Task[None] | None = None
        try:
            await self._check()
            checking = asyncio.create_task(self._check_regularly())
            while True:
                if checking.done():
                    checking.result()
                now_s = self._clock_s()
                status = self._status()
                if status != sent_status and (not sent_status or now_s - status_s >= _STATUS_S):
                    sent_status, status_s = status, now_s
                    yield event("status", status)
                while self._waiting:
                    yield event("message", self._waiting.popleft())
                self._has_news.clear()
                try:
                    async with asyncio.timeout(_STATUS_S):
                        await self._has_news.wait()
                except TimeoutError:
                    pass
        finally:
            # Do not await here: the viewer's task may already be cancelled.
            if checking is not None:
                checking.cancel()
            self.close()

    def close(self) -> None:
        """Close the connections; nsqd deletes the channel with the last one."""
        if self._pause is not None:
            self._pause.cancel()
        for source in list(self._sources.values()):
            source.connection.close()
        self._sources.clear()

    def _status(self) -> dict[str, Any]:
        return {
            "topic": self._options.topic,
            "channel": self.channel,
            "nodes": sorted(self._sources),
            "paused": sorted(self._paused & self._sources.keys()),
            "problems": dict(sorted(self.problems.items())),
            "contains": self._options.contains,
            "received": self._received,
            "matched": self._matched,
            "dropped": self._dropped,
            "missed": self._missed_before + sum(source.missed for source in self._sources.values()),
        }

    # Which nodes are followed

    async def _check_regularly(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_S)
            await self._check()

    async def _check(self) -> None:
        """Follow the topic on every nsqd where this takes no message from a consumer, and leave the others."""
        now_s = self._clock_s()
        if now_s - self._discovered_s >= _DISCOVER_S:
            self._discovered_s = now_s
            await self._discover()
        for node in self.problems.keys() - self._targets.keys() - self._sources.keys() - {""}:
            del self.problems[node]
        await asyncio.gather(*map(self._check_node, self._targets.keys() | self._sources.keys()))

    async def _discover(self) -> None:
        problems: list[str] = []
        try:
            nodes = await self._cluster.topic_nodes(self._options.topic, problems)
        except RequestFailed as error:
            if "TOPIC_NOT_FOUND" not in str(error):
                self.problems[""] = str(error)
                return
            nodes = []
        self._targets = {node.http_address: node.tcp_address for node in nodes}
        if not nodes:
            problems.append(_NO_NODE)
        self.problems.pop("", None)
        if problems:
            self.problems[""] = "\n".join(problems)

    async def _check_node(self, node: str) -> None:
        try:
            state = await self._cluster.topic_state(node, self._options.topic)
        except RequestFailed as error:
            self._leave(node, error.plain)
            return
        reason = refusal(state, self.channel)
        if state is None or reason:
            self._leave(node, reason)
            return
        self._note(node, state)
        if node in self._sources:
            self.problems.pop(node, None)
        elif node in self._targets:
            await self._follow(node, self._targets[node])

    def _note(self, node: str, state: TopicState) -> None:
        (self._paused.add if state.is_paused else self._paused.discard)(node)
        if node in self._sources:
            self._sources[node].note(state)

    def _leave(self, node: str, reason: str) -> None:
        source = self._sources.pop(node, None)
        if source is not None:
            self._missed_before += source.missed
            source.connection.close()
        self.problems[node] = reason

    async def _follow(self, node: str, tcp_address: str) -> None:
        try:
            options = ClientOptions.of(
                {
                    "user_agent": f"nsqadmin/{VERSION}",
                    **self._client_options,
                    "sample_rate": self._options.sample_percent - 1 if self._options.sample_percent < 100 else 0,
                }
            )
            connection, terms = await open_connection(tcp_address, options)
            try:
                await connection.request(requests.encode_subscribe(self._options.topic, self.channel))
                # The other channels may have been deleted since the previous check.
                reason = refusal(await self._cluster.topic_state(node, self._options.topic), self.channel)
                if reason:
                    raise _Refused(reason)
            except BaseException:
                connection.close()
                raise
        except (NSQError, ConfigError) as error:
            self.problems[node] = str(error)
            return
        self.problems.pop(node, None)
        source = _Source(self, node, connection)
        source.ready = terms.max_rdy_count
        self._sources[node] = source
        connection.start(source)
        source.set_ready(_READY if self._pause is None else 0)


def shown_body(body: bytes, limit: int) -> dict[str, Any]:
    """Return a body in a form that JSON can hold: text if it is UTF-8, else base64; cut after ``limit`` bytes."""
    shown = body[:limit]
    document: dict[str, Any] = {"size": len(body), "truncated": len(body) > limit}
    text = _text(shown, is_cut=len(body) > limit)
    if text is not None:
        return {"encoding": "text", "body": text, **document}
    return {"encoding": "base64", "body": b64encode(shown).decode(), **document}


def _text(data: bytes, *, is_cut: bool) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        # The cut may have split the last character.
        if is_cut and error.start >= len(data) - 3 and "end of data" in error.reason:
            return data[: error.start].decode()
        return None
