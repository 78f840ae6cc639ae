"""LocalBroker: an nsqd for a test, and an nsqlookupd if the test needs one.

They run in a thread of the test's process and listen on free ports of the loopback interface. Messages, timeouts and
files are those of the real daemons. The clock of nsqd can be advanced, so a test of timeouts and deferred messages
does not wait.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

import orjson

from nsqx.errors import ConfigError, NSQError
from nsqx.flags import UsageError, VersionRequested
from nsqx.gotext import parse_duration_ns
from nsqx.log import Log, parse_level
from nsqx.nsqd import options as nsqd_options
from nsqx.nsqd.daemon import NsqdDaemon
from nsqx.nsqlookupd.daemon import NsqlookupdDaemon
from nsqx.nsqlookupd.options import NsqlookupdOptions
from nsqx.testing.advancing_clock import AdvancingClock
from nsqx.testing.loop_thread import LoopThread
from nsqx.units import NS_PER_S

_HOST = "127.0.0.1"
# The longest time for one call.
_TIMEOUT_S = 30.0
_MANY = 1000
_POLL_S = 0.01


class LocalBrokerError(NSQError):
    """The broker of a test cannot be started, or has refused a request."""


class LocalBroker:
    """A real nsqd for one test: ``with LocalBroker(msg_timeout="5s") as broker: ...``, or ``async with``.

    Keyword arguments are flags of nsqd, with underscores. ``lookupd`` starts an nsqlookupd too. The data directory is
    temporary unless ``data_path`` names one. Messages that nsqd logs at ``log_level`` or above go to stderr.
    """

    def __init__(self, *, lookupd: bool = False, log_level: str = "fatal", **flags: object) -> None:
        self._with_lookupd = lookupd
        try:
            self._log_level = parse_level(log_level)
        except ValueError as error:
            raise LocalBrokerError(str(error)) from None
        self._flags = flags
        self._thread: LoopThread | None = None
        self._nsqd: NsqdDaemon | None = None
        self._lookupd: NsqlookupdDaemon | None = None
        self._clock: AdvancingClock | None = None
        self._directory = ""
        self._tcp_port = self._http_port = 0

    # Life

    def start(self) -> None:
        """Start the daemons. Raises LocalBrokerError."""
        if self._thread is not None:
            raise LocalBrokerError("the broker is running already")
        self._thread = LoopThread("nsqx broker", _TIMEOUT_S)
        try:
            if self._with_lookupd:
                self._thread.run(self._start_lookupd())
            self._start_nsqd()
        except BaseException:
            self.stop()
            raise

    async def _start_lookupd(self) -> None:
        options = NsqlookupdOptions(
            tcp_address=f"{_HOST}:0", http_address=f"{_HOST}:0", broadcast_address=_HOST, log_level=self._log_level
        )
        self._lookupd = NsqlookupdDaemon(options, Log("[nsqlookupd] ", self._log_level), owns_process=False)
        await self._lookupd.start()

    def _start_nsqd(self) -> None:
        assert self._thread is not None
        try:
            options = nsqd_options.options_from_argv(self._argv(), sys.stderr)
            self._thread.run(self._run_nsqd(options))
        except (UsageError, VersionRequested, ConfigError) as error:
            lines = str(error).splitlines() or ["the flags print a text and start no nsqd"]
            raise LocalBrokerError(f"cannot start the broker: {lines[0]}") from None
        except (NSQError, OSError) as error:
            raise LocalBrokerError(f"cannot start the broker: {error}") from None

    def _argv(self) -> list[str]:
        flags = {
            "tcp_address": f"{_HOST}:{self._tcp_port}",
            "http_address": f"{_HOST}:{self._http_port}",
            "broadcast_address": _HOST,
            **self._flags,
        }
        if "data_path" not in flags:
            self._directory = self._directory or tempfile.mkdtemp(prefix="nsqx-broker-")
            flags["data_path"] = self._directory
        if self._lookupd is not None:
            flags["lookupd_tcp_address"] = f"{_HOST}:{self._lookupd.tcp_port}"
        argv = []
        for name, value in flags.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            argv.append(f"--{name.replace('_', '-')}={text}")
        return argv

    async def _run_nsqd(self, options: nsqd_options.NsqdOptions) -> None:
        self._clock = AdvancingClock(asyncio.get_running_loop())
        daemon = NsqdDaemon(options, Log("[nsqd] ", self._log_level), self._clock, owns_process=False)
        await daemon.start()
        self._nsqd = daemon
        self._tcp_port, self._http_port = daemon.broker.tcp_port, daemon.broker.http_port
        if daemon.broker.lookup is not None:
            await daemon.broker.lookup.settled()

    def stop(self) -> None:
        """Stop the daemons, and remove the data directory if it is temporary. No-op if nothing runs."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            for daemon in (self._nsqd, self._lookupd):
                if daemon is not None:
                    thread.run(daemon.stop())
        finally:
            self._nsqd = self._lookupd = None
            thread.stop()
            if self._directory:
                shutil.rmtree(self._directory, ignore_errors=True)
                self._directory = ""
            self._tcp_port = self._http_port = 0

    def restart(self) -> None:
        """Stop nsqd and start it again, on the same ports and with its messages. Connections are lost."""
        thread, nsqd = self._running()
        self._nsqd = None
        thread.run(nsqd.stop())
        self._start_nsqd()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Let nsqd neither read nor answer inside a ``with`` block, like a process that is stopped."""
        thread, _ = self._running()
        thaw = thread.block()
        try:
            yield
        finally:
            thaw()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    def _running(self) -> tuple[LoopThread, NsqdDaemon]:
        if self._thread is None or self._nsqd is None:
            raise LocalBrokerError("the broker is not running: use it in a with block, or call start()")
        return self._thread, self._nsqd

    # Addresses

    @property
    def tcp_address(self) -> str:
        """The address for ``Producer`` and ``nsqd_tcp_addresses``."""
        self._running()
        return f"{_HOST}:{self._tcp_port}"

    @property
    def http_address(self) -> str:
        """The address of nsqd's HTTP API."""
        self._running()
        return f"{_HOST}:{self._http_port}"

    @property
    def lookupd_http_address(self) -> str:
        """The address for ``lookupd_http_addresses``. Raises LocalBrokerError without ``lookupd=True``."""
        self._running()
        if self._lookupd is None:
            raise LocalBrokerError("there is no nsqlookupd: use LocalBroker(lookupd=True)")
        return f"{_HOST}:{self._lookupd.http_port}"

    # Time

    def advance(self, duration: float | str) -> None:
        """Move nsqd's clock forward, by seconds or by a text such as "90s" or "15m".

        Messages in flight time out, and deferred messages are delivered. Heartbeats and the clock of the client follow
        the real time.
        """
        thread, _ = self._running()
        try:
            seconds = parse_duration_ns(duration) / NS_PER_S if isinstance(duration, str) else duration
        except ValueError as error:
            raise LocalBrokerError(f"invalid duration {duration!r}: {error}") from None
        if seconds < 0:
            raise LocalBrokerError(f"invalid duration {duration!r}: the clock only moves forward")
        assert self._clock is not None
        thread.call(self._clock.advance, seconds)

    # Messages

    def create(self, topic: str, channel: str = "") -> None:
        """Create a topic, and a channel, which gets the messages that are published from now on."""
        self._post("/topic/create", topic=topic)
        if channel:
            self._post("/channel/create", topic=topic, channel=channel)

    def publish(self, topic: str, *bodies: bytes | str, defer: float = 0) -> None:
        """Publish messages, which are delivered after ``defer`` seconds."""
        query = {"topic": topic} | ({"defer": str(round(defer * 1000))} if defer else {})
        for body in bodies:
            if not isinstance(body, bytes | str):
                raise LocalBrokerError(f"publish to {topic}: a body must be bytes or str, not {type(body).__name__}")
            self._post("/pub", body.encode() if isinstance(body, str) else body, **query)

    def bodies(self, topic: str, channel: str = "") -> list[bytes]:
        """Return the bodies of up to 1,000 messages of a channel that are not finished. Nothing is consumed.

        Without ``channel``, return those that wait in the topic because it has no channel; with a log, all messages.
        """
        query = {"topic": topic, "count": str(_MANY), "max_bytes": str(16 << 20)}
        answer = self._get("/peek", **query | ({"channel": channel} if channel else {}))
        return [_body(message) for message in answer["messages"]]

    def stats(self, topic: str, channel: str = "") -> dict[str, Any]:
        """Return the members of /stats of a topic or a channel. Raises LocalBrokerError if it does not exist."""
        stats = self._find_stats(topic, channel)
        if stats is None:
            raise LocalBrokerError(_missing(topic, channel))
        return stats

    def _find_stats(self, topic: str, channel: str) -> dict[str, Any] | None:
        topics = self._get("/stats", format="json", topic=topic)["topics"] or []
        for found in topics:
            if not channel:
                return dict(found)
            for one in found["channels"] or []:
                if one["channel_name"] == channel:
                    return dict(one)
        return None

    def wait_for(self, topic: str, channel: str, timeout: float = 10.0, **counts: int) -> None:
        """Return when the stats of a channel have these values, such as ``deferred_count=1``; raises TimeoutError.

        The channel need not exist yet.
        """
        deadline_s = time.monotonic() + timeout
        while True:
            stats = self._find_stats(topic, channel)
            if stats is not None and all(stats.get(name) == count for name, count in counts.items()):
                return
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"after {timeout:g} s: {_differences(topic, channel, stats, counts)}")
            time.sleep(_POLL_S)

    def wait_until_finished(self, topic: str, channel: str, timeout: float = 10.0) -> None:
        """Return when a channel has no unfinished message; raises TimeoutError."""
        self.wait_for(topic, channel, timeout, depth=0, in_flight_count=0, deferred_count=0)

    # Requests

    def _get(self, path: str, **query: str) -> Any:
        return orjson.loads(self._request("GET", path, b"", query))

    def _post(self, path: str, body: bytes = b"", **query: str) -> None:
        self._request("POST", path, body, query)

    def _request(self, method: str, path: str, body: bytes, query: dict[str, str]) -> bytes:
        self._running()
        connection = http.client.HTTPConnection(_HOST, self._http_port, timeout=_TIMEOUT_S)
        try:
            connection.request(method, f"{path}?{urlencode(query)}", body)
            response = connection.getresponse()
            answer = response.read()
        except OSError as error:
            raise LocalBrokerError(f"{method} {path} failed: {error}") from None
        finally:
            connection.close()
        if response.status != 200:
            raise LocalBrokerError(f"{method} {path} {query}: {response.status} {answer.decode(errors='replace')}")
        return answer


def _missing(topic: str, channel: str) -> str:
    return f"there is no {f'channel {channel} in ' if channel else ''}topic {topic}"


def _differences(topic: str, channel: str, stats: dict[str, Any] | None, wanted: dict[str, int]) -> str:
    """Return in words how the stats of a channel differ from those that a test waits for."""
    if stats is None:
        return _missing(topic, channel)
    wrong = {name: count for name, count in wanted.items() if stats.get(name) != count}
    texts = [
        f"{name} is {stats[name]}, not {count}" if name in stats else f"the stats have no {name}"
        for name, count in wrong.items()
    ]
    return f"{topic}/{channel}: {', '.join(texts)}"


def _body(message: dict[str, Any]) -> bytes:
    """Return the body of a message of /peek."""
    if "text" in message:
        return str(message["text"]).encode()
    return base64.b64decode(message["base64"])
