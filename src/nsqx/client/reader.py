"""Reading the log of a topic from any position, without a channel: nothing is consumed and nothing is finished.

A reader follows the log of each nsqd over HTTP: /log/offsets says how far messages are durable, and waits for new ones
(a long poll); /peek returns the messages. Why not /log/read: see docs/decisions/0025-client-reader-uses-peek.md.

    LogFollower, one for each nsqd ──▶ queue of batches, bounded ──▶ Reader
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any

from nsqx.client.arguments import as_list, check_name
from nsqx.client.codecs import Codec, codec_of, decoded
from nsqx.client.health import START_TIMEOUT_S, ClientHealth
from nsqx.client.log_follower import LogFollower, LogMessage, LogStart, log_start
from nsqx.client.options import Duration, OptionKeywords, Options, positive_seconds_of, seconds_of
from nsqx.client.pool import MAX_RETRY_DELAY_S
from nsqx.errors import ClientClosed, ConfigError, ConnectFailed, LookupFailed, RequestFailed

if TYPE_CHECKING:
    from typing import Self, Unpack

    from nsqx.cluster.http import HTTPSession
    from nsqx.cluster.lookupd import LookupdClient

_log = logging.getLogger("nsqx.client")

_REQUEST_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class _End:
    """Marks the end of the messages in the queue, with the failure that ended them."""

    error: Exception | None = None


class Reader:
    """Reads the messages of a topic from a position on. The topic must have the log store of nsqx's nsqd.

    Iterate with ``async for message in reader``, or call ``read``. Messages of one nsqd come in the order of their
    offsets. The iteration waits for new messages at the end of the log, unless ``stop_at_end`` is set.
    """

    def __init__(
        self,
        topic: str,
        *,
        nsqd_http_addresses: str | Iterable[str] = (),
        lookupd_http_addresses: str | Iterable[str] = (),
        start: str | int | datetime | timedelta | Mapping[str, str] = "beginning",
        stop_at_end: bool = False,
        skip_missing: bool = False,
        codec: Codec[Any] | Any = None,
        batch_bytes: int = 1024 * 1024,
        start_timeout: Duration = START_TIMEOUT_S,
        request_timeout: Duration = _REQUEST_TIMEOUT_S,
        require_connection: bool = False,
        **options: Unpack[OptionKeywords],
    ) -> None:
        """Create a reader. No request is made before ``start``.

        Args:
            topic: Name of the topic.
            nsqd_http_addresses: nsqds to read from, as ``host:port`` of the HTTP API or a URL.
            lookupd_http_addresses: nsqlookupds that name the nsqds of the topic.
            start: ``beginning`` (the oldest message there is), ``end`` (only new messages), an offset, a time, a
                duration before now (a timedelta, or ``"-1h"``), or the ``positions`` of an earlier
                reader. nsqds without a position are read from the beginning.
            stop_at_end: End the iteration where the logs ended at the start.
            skip_missing: Continue at the oldest message if those at the position were removed, instead of raising.
            codec: Decodes bodies to ``message.value``: a codec of ``nsqx.codecs``, or a type such as a pydantic model.
                A message that cannot be decoded has the InvalidBody in ``message.error``.
            batch_bytes: Size of the bodies in one request, 1 KiB to 16 MiB. Larger bodies raise ReadFailed.
            start_timeout: Longest time that ``start`` waits for the first answers (10 s by default).
            request_timeout: Longest time for one request.
            require_connection: Raise ConnectFailed from ``start`` if no nsqd can be reached.
            **options: Options of the client. The TLS options, the token files and the lookup options are used.

        Raises:
            ConfigError: An argument is invalid, or no address is given.
            InvalidName: The name of the topic is not valid.
        """
        self.topic = check_name("topic", topic)
        self._options = Options.of(options)
        self._named = as_list(nsqd_http_addresses)
        self._lookupd_addresses = as_list(lookupd_http_addresses)
        if not self._named and not self._lookupd_addresses:
            raise ConfigError("a reader needs nsqd_http_addresses or lookupd_http_addresses")
        self._start: LogStart | dict[str, LogStart]
        if isinstance(start, Mapping):
            self._start = {address: log_start(position) for address, position in start.items()}
        else:
            self._start = log_start(start)
        if not isinstance(batch_bytes, int) or not 1024 <= batch_bytes <= 16 * 1024 * 1024:
            raise ConfigError(f"option batch_bytes: must be an integer from 1024 to 16777216, not {batch_bytes!r}")
        self._stops_at_end = stop_at_end
        self._skips_missing = skip_missing
        self._codec: Codec[Any] | None = None if codec is None else codec_of(codec)
        self._batch_bytes = batch_bytes
        self._start_timeout_s = positive_seconds_of("start_timeout", start_timeout)
        self._request_timeout_s = positive_seconds_of("request_timeout", request_timeout)
        self._requires_connection = require_connection
        self._followers: dict[str, LogFollower] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._batches: asyncio.Queue[list[LogMessage] | _End] = asyncio.Queue(1)
        self._taken: deque[LogMessage] = deque()
        self._positions: dict[str, str] = {}
        self._lookup_failure: Exception | None = None
        self._is_started = self._is_closed = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Begin to read. Wait until every nsqd has answered or cannot be reached, at most ``start_timeout``.

        Raises ConnectFailed if no nsqd has answered and ``require_connection`` is set.
        """
        if self._is_closed:
            raise ClientClosed("the reader is closed")
        if self._is_started:
            return
        self._is_started = True
        self._http = _session(self._options, self._request_timeout_s)
        for address in self._named:
            self._follow(address)
        if self._lookupd_addresses:
            is_found = asyncio.get_running_loop().create_future()
            self._spawn(self._keep_looking_up(is_found))
            await asyncio.wait([is_found], timeout=self._start_timeout_s)
        attempts = [asyncio.ensure_future(each.first_attempt.wait()) for each in self._followers.values()]
        try:
            if attempts:
                await asyncio.wait(attempts, timeout=self._start_timeout_s)
        finally:
            for attempt in attempts:
                attempt.cancel()
        if not self.is_connected and self._requires_connection:
            errors = [error for error in (self.last_error,) if error is not None]
            await self.close()
            if not errors:
                errors.append(ConnectFailed(f"no nsqd has answered after {self._start_timeout_s:g} s"))
            raise ConnectFailed("; ".join(map(str, errors)))

    async def close(self) -> None:
        """Stop reading."""
        self._is_closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # An iteration that waits ends.
        while not self._batches.empty():
            self._batches.get_nowait()
        self._batches.put_nowait(_End())

    def __aiter__(self) -> AsyncIterator[LogMessage]:
        return self

    async def __anext__(self) -> LogMessage:
        if not self._is_started:
            await self.start()
        while not self._taken:
            if not await self._take():
                raise StopAsyncIteration
        return self._next()

    async def read(self, max_count: int, timeout: Duration = 1.0) -> list[LogMessage]:  # noqa: ASYNC109
        """Return up to ``max_count`` messages: those that are there, or the first that arrive within ``timeout``.

        The list is empty if none arrives. Raises ReadFailed if an nsqd refuses the position or the topic.
        """
        timeout_s = seconds_of("timeout", timeout)
        try:
            async with asyncio.timeout(timeout_s):
                if not self._is_started:
                    await self.start()
                while not self._taken and await self._take():
                    pass
        except TimeoutError:
            return []
        return [self._next() for _ in range(min(max_count, len(self._taken)))]

    def _next(self) -> LogMessage:
        message = self._taken.popleft()
        self._positions[message.nsqd_address] = f"{message.log}:{message.offset + 1}"
        return message

    async def _take(self) -> bool:
        """Wait for more messages; False at the end; raises ReadFailed."""
        batch = await self._batches.get()
        if isinstance(batch, _End):
            self._batches.put_nowait(batch)
            if batch.error is not None:
                raise batch.error
            return False
        self._taken.extend(batch)
        return True

    # State

    @property
    def positions(self) -> dict[str, str]:
        """Where to continue, by the address of the nsqd: after the messages that the program has received.

        Keep them to continue with ``start=positions``. A position is text: the id of the log and an offset.
        """
        unread = {each.address: each.position for each in self._followers.values() if each.position}
        return {**unread, **self._positions}

    @property
    def is_connected(self) -> bool:
        """True if an nsqd has answered the last request."""
        return any(each.is_connected for each in self._followers.values())

    @property
    def last_error(self) -> Exception | None:
        """The last failed request; None if there was none."""
        failures = [each.last_error for each in self._followers.values() if each.last_error is not None]
        return failures[0] if failures else self._lookup_failure

    @property
    def health(self) -> ClientHealth:
        """The state of the connections, for readiness probes."""
        connected = tuple(address for address, each in self._followers.items() if each.is_connected)
        failures = {
            address: str(each.last_error)
            for address, each in self._followers.items()
            if not each.is_connected and each.last_error is not None
        }
        return ClientHealth(bool(connected), connected, failures, self.last_error)

    # Following

    def _follow(self, address: str) -> None:
        from nsqx.cluster.nsqd import NsqdClient

        start = self._start.get(address, log_start("beginning")) if isinstance(self._start, dict) else self._start
        follower = LogFollower(
            NsqdClient(self._http, address),
            self.topic,
            start,
            stops_at_end=self._stops_at_end,
            skips_missing=self._skips_missing,
            batch_bytes=self._batch_bytes,
            request_timeout_s=self._request_timeout_s,
        )
        self._followers[address] = follower
        self._spawn(self._deliver(follower))

    async def _deliver(self, follower: LogFollower) -> None:
        """Put the messages of an nsqd into the queue."""
        async for batch in follower.batches():
            if self._codec is not None:
                for message in batch:
                    self._decode(self._codec, message)
            await self._batches.put(batch)

    def _decode(self, codec: Codec[Any], message: LogMessage) -> None:
        try:
            message.value = decoded(codec, message.body)
        except Exception as error:
            message.value, message.error = None, error

    async def _keep_looking_up(self, is_found: asyncio.Future[None]) -> None:
        from nsqx.cluster.lookupd import LookupdClient

        lookupds = LookupdClient.at(_session(self._options, self._request_timeout_s), self._lookupd_addresses)
        options = self._options
        while True:
            nodes = await self._look_up(lookupds)
            for address in nodes:
                if address not in self._followers:
                    self._follow(address)
            if not is_found.done():
                is_found.set_result(None)
            if self._stops_at_end and self._lookup_failure is None:
                return
            pause_s = options.lookupd_poll_interval
            if not self._followers:
                pause_s = min(pause_s, MAX_RETRY_DELAY_S)
            await asyncio.sleep(pause_s * (1 + options.lookupd_poll_jitter * random.random()))

    async def _look_up(self, lookupds: list[LookupdClient]) -> list[str]:
        """Ask all nsqlookupds, and return the HTTP addresses of the nsqds that have the topic."""
        answers = await asyncio.gather(*(each.lookup(self.topic) for each in lookupds), return_exceptions=True)
        found: list[str] = []
        failures: list[str] = []
        for lookupd, answer in zip(lookupds, answers, strict=True):
            if isinstance(answer, RequestFailed):
                failures.append(f"{lookupd}: {answer.reason}")
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found += [node.http_address for node in answer]
        if len(failures) == len(lookupds):
            self._lookup_failure = LookupFailed("; ".join(failures))
            _log.warning("cannot find nsqd for %s: %s", self.topic, self._lookup_failure)
        else:
            self._lookup_failure = None
        return list(dict.fromkeys(found))

    def _spawn(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        """End the iteration after a failure, and when all logs were read to their ends."""
        self._tasks.discard(task)
        if task.cancelled() or self._is_closed:
            return
        error = task.exception()
        if isinstance(error, Exception):
            self._spawn(self._end(error))
        elif self._stops_at_end and not self._tasks:
            self._spawn(self._end(None))

    async def _end(self, error: Exception | None) -> None:
        await self._batches.put(_End(error))
        await asyncio.Event().wait()  # until close, so that the end is put once


def _session(options: Options, timeout_s: float) -> HTTPSession:
    # Imported here because a program without a reader sends no HTTP requests.
    from nsqx.client.http_credentials import http_credentials
    from nsqx.cluster.http import HTTPSession

    return HTTPSession(http_credentials(options), timeout_s, timeout_s, 64 * 1024 * 1024)
