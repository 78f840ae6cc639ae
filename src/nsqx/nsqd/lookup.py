"""nsqd's side of discovery: telling every nsqlookupd what is here, and asking which channels a new topic has.

Each nsqlookupd has a task of its own, so one that is dead, slow or wrong holds up neither the others nor a single
message. After every connect all topics and channels are registered; later changes are sent as they happen. A change
while not connected makes the task try to connect at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import quote as url_quote

import orjson

from nsqx.errors import ConfigError, NSQError
from nsqx.names import is_ephemeral, is_valid_name
from nsqx.net.address import TCPAddress, format_host_port, parse_address
from nsqx.net.daemon_http import NSQLOOKUPD, ask
from nsqx.units import NS_PER_S
from nsqx.version import NSQ_VERSION
from nsqx.wire import lookup as wire
from nsqx.wire.gojson import InvalidJSON

if TYPE_CHECKING:
    from nsqx.nsqd.broker import Broker

PING_INTERVAL_S = 15.0
# As in Go nsqd: connecting, and each answer, may take this long.
_TIMEOUT_S = 1.0
# The pause between two attempts to connect doubles from the first to the longest. A change ends it early, but not
# before the soonest: many new topics must not flood a dead nsqlookupd.
_RETRY_SOONEST_S = 0.01
_RETRY_FIRST_S = 0.05
_RETRY_LONGEST_S = 15.0
# A connection that has lasted this long was a good one: after it the pauses begin with the first one again.
_GOOD_CONNECTION_S = 5.0
# How many commands may be without an answer; further ones wait in memory, and too many of those end the connection.
_PIPELINE = 500
_MAX_WAITING = 100_000
# What one nsqlookupd may say about the channels of a topic.
_MAX_CHANNELS_SIZE = 1024 * 1024
# How many channels known elsewhere are created for a new topic.
MAX_CHANNELS = 1000
_NAMES_PER_TURN = 2000


class PeerFailed(NSQError):
    """nsqlookupd did not do what it should; the text says what."""


class LookupPeer:
    """The connection to one nsqlookupd, for as long as it is configured."""

    def __init__(self, address: str, broker: Broker) -> None:
        self.address = address
        self.http_address = ""  # where its HTTP API is, while connected
        self._broker = broker
        self._log = broker.log
        self._is_connected = False  # and has answered IDENTIFY: every registration is or will be sent
        self._registrations: Iterator[bytes] = iter(())  # of what existed at connect, not sent yet
        self._changes: deque[bytes] = deque()  # since then, not sent yet
        self._unanswered: deque[bytes] = deque()
        self._answer_due_s = 0.0  # for the first of those
        self._timeout: asyncio.Timeout | None = None  # of the read that is under way
        self._has_changes = asyncio.Event()  # something changed while not connected
        self.is_registered = asyncio.Event()  # once, everything that was here
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._task = asyncio.create_task(self._run())

    def send(self, command: bytes) -> None:
        """Send a change at once, or connect now if not connected: connecting sends everything that exists."""
        if not self._is_connected:
            self._has_changes.set()
            return
        self._log.info("LOOKUPD(%s): %s", self.address, command.decode().strip())
        self._changes.append(command)
        self._send_waiting()

    async def close(self) -> None:
        """Disconnect for good."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        retry_s = _RETRY_FIRST_S
        while True:
            started_s = loop.time()
            self._has_changes.clear()
            try:
                await self._connect()
                await self._converse()
            except (OSError, TimeoutError, EOFError, ValueError, NSQError) as error:
                self._log.error("LOOKUPD(%s): %s", self.address, str(error) or type(error).__name__)
            finally:
                self._disconnect()
            if loop.time() - started_s >= _GOOD_CONNECTION_S:
                retry_s = _RETRY_FIRST_S
            is_woken = await self._pause(retry_s)
            retry_s = _RETRY_FIRST_S if is_woken else min(2 * retry_s, _RETRY_LONGEST_S)

    async def _pause(self, pause_s: float) -> bool:
        """Wait before the next attempt; True as soon as something has changed and the shortest pause is over."""
        await asyncio.sleep(_RETRY_SOONEST_S)
        try:
            async with asyncio.timeout(pause_s - _RETRY_SOONEST_S):
                return await self._has_changes.wait()
        except TimeoutError:
            return False

    async def _connect(self) -> None:
        """Connect and introduce this nsqd; from here on every registration is sent."""
        self._log.info("LOOKUP connecting to %s", self.address)
        address = parse_address(self.address)
        if not isinstance(address, TCPAddress):
            raise ConfigError(f"{self.address} is not host:port")
        async with asyncio.timeout(_TIMEOUT_S):
            self._reader, self._writer = await asyncio.open_connection(
                address.host or "localhost", address.port, ssl=self._broker.lookup_tls_context
            )
        self._writer.write(wire.MAGIC + wire.encode_identify(self._announcement()))
        async with asyncio.timeout(_TIMEOUT_S):
            introduction = await self._read_answer()
        try:
            info = wire.decode_introduction(introduction)
        except InvalidJSON as error:
            raise PeerFailed(f"parsing response - {error}") from None
        self._log.info("LOOKUPD(%s): peer info %s", self.address, info)
        if info.broadcast_address:
            self.http_address = format_host_port(info.broadcast_address, info.http_port)
        else:
            self._log.error("LOOKUPD(%s): no broadcast address", self.address)
        self._is_connected = True
        self._registrations = _registrations(self._broker)
        self._send_waiting()

    def _announcement(self) -> wire.Announcement:
        options = self._broker.options
        return wire.Announcement(
            broadcast_address=options.broadcast_address,
            tcp_port=self._broker.broadcast_tcp_port,
            http_port=self._broker.broadcast_http_port,
            version=NSQ_VERSION,
            hostname=self._broker.hostname,
            topology_zone=options.topology_zone,
            topology_region=options.topology_region,
        )

    def _send_waiting(self) -> None:
        """Send what waits, registrations first, as far as the number of commands without an answer allows."""
        assert self._writer is not None
        commands = list(islice(self._registrations, _PIPELINE - len(self._unanswered)))
        while self._changes and len(self._unanswered) + len(commands) < _PIPELINE:
            commands.append(self._changes.popleft())
        if commands and not self._writer.is_closing():
            if not self._unanswered:
                self._expect_answer()
            self._unanswered += commands
            self._writer.write(b"".join(commands))

    def _expect_answer(self) -> None:
        """The next answer must come within the time limit from now on."""
        self._answer_due_s = asyncio.get_running_loop().time() + _TIMEOUT_S
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(self._answer_due_s)

    async def _converse(self) -> None:
        """Take answers, and send a PING after a long silence; raises PeerFailed or OSError when the connection ends."""
        loop = asyncio.get_running_loop()
        while True:
            if not self._unanswered:
                self.is_registered.set()
            if len(self._changes) > _MAX_WAITING:
                raise PeerFailed(f"{len(self._changes)} commands wait for answers")
            answer = await self._next_answer(self._answer_due_s if self._unanswered else loop.time() + PING_INTERVAL_S)
            if answer is None:
                self._send_ping()
                continue
            if not self._unanswered:
                raise PeerFailed("unexpected answer")
            command = self._unanswered.popleft()
            if answer != wire.OK:
                text = answer[:200].decode("utf-8", "replace")
                raise PeerFailed(f"{command.decode().strip()} - lookupd returned {text}")
            self._expect_answer()
            self._send_waiting()

    async def _next_answer(self, due_s: float) -> bytes | None:
        """The next answer; None if it is time for a PING. Raises TimeoutError if an answer is overdue."""
        try:
            async with asyncio.timeout_at(due_s) as self._timeout:
                return await self._read_answer()
        except TimeoutError:
            # A command may have been sent at the moment the timeout expired: its answer is not overdue.
            if self._unanswered and asyncio.get_running_loop().time() >= self._answer_due_s:
                raise TimeoutError("no answer in time") from None
            return None
        except asyncio.IncompleteReadError:
            raise PeerFailed("connection closed") from None
        finally:
            self._timeout = None

    def _send_ping(self) -> None:
        if not self._unanswered:
            self._log.debug("LOOKUPD(%s): sending heartbeat", self.address)
            self._changes.append(wire.PING)
            self._send_waiting()

    async def _read_answer(self) -> bytes:
        assert self._reader is not None
        size = int.from_bytes(await self._reader.readexactly(4), "big", signed=True)
        if not 0 <= size <= wire.MAX_ANSWER_SIZE:
            raise PeerFailed(f"invalid response size {size}")
        answer = await self._reader.readexactly(size)
        if wire.is_refusal(answer):
            raise PeerFailed(f"lookupd returned {answer[:200].decode('utf-8', 'replace')}")
        return answer

    def _disconnect(self) -> None:
        self.http_address = ""
        self._is_connected = False
        self._registrations = iter(())
        self._changes.clear()
        self._unanswered.clear()
        if self._writer is not None:
            self._writer.close()
            self._writer = self._reader = None


def _registrations(broker: Broker) -> Iterator[bytes]:
    """REGISTER for everything here: channels, and topics that have none.

    The commands are made as they are asked for. A topic that is deleted meanwhile may still be named: its UNREGISTER
    follows all of these.
    """
    for topic in list(broker.topics.values()):
        if not topic.channels:
            yield wire.encode_register(topic.name)
        for channel_name in list(topic.channels):
            yield wire.encode_register(topic.name, channel_name)


class Lookup:
    """All configured nsqlookupd; the broker tells it of every creation and deletion."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._peers: dict[str, LookupPeer] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def set_addresses(self, addresses: Iterable[str]) -> None:
        """Talk to these from now on: new ones are connected to, others disconnected."""
        wanted = dict.fromkeys(addresses)
        for address in list(self._peers):
            if address not in wanted:
                self._broker.log.info("LOOKUP(%s): removing peer", address)
                self._end(self._peers.pop(address))
        for address in wanted:
            if address not in self._peers:
                self._broker.log.info("LOOKUP(%s): adding peer", address)
                self._peers[address] = LookupPeer(address, self._broker)

    def _end(self, peer: LookupPeer) -> None:
        task = asyncio.create_task(peer.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Disconnect from all."""
        self.set_addresses([])
        if self._closing:
            await asyncio.wait(self._closing)

    def registered(self, topic_name: str, channel_name: str = "") -> None:
        """A topic or a channel has come into being."""
        for peer in self._peers.values():
            peer.send(wire.encode_register(topic_name, channel_name))

    def unregistered(self, topic_name: str, channel_name: str = "") -> None:
        """A topic or a channel is gone."""
        for peer in self._peers.values():
            peer.send(wire.encode_unregister(topic_name, channel_name))

    async def settled(self) -> None:
        """Wait until every nsqlookupd has heard of this nsqd."""
        await asyncio.gather(*(peer.is_registered.wait() for peer in self._peers.values()))

    def can_be_asked(self) -> bool:
        """True if some nsqlookupd is connected."""
        return any(peer.http_address for peer in self._peers.values())

    async def channels_of(self, topic_name: str) -> list[str]:
        """The channels that a topic has elsewhere and must have here, at most MAX_CHANNELS; never raises.

        Every connected nsqlookupd is asked at the same time. Ephemeral channels are left out: they exist while they
        have a consumer, and there is none here.
        """
        addresses = [peer.http_address for peer in self._peers.values() if peer.http_address]
        answers = await asyncio.gather(*(self._ask_channels(address, topic_name) for address in addresses))
        names = sorted(set().union(*answers))
        if len(names) > MAX_CHANNELS:
            self._broker.log.warn(
                "TOPIC(%s): nsqlookupd names %d channels, creating the first %d", topic_name, len(names), MAX_CHANNELS
            )
        return names[:MAX_CHANNELS]

    async def _ask_channels(self, http_address: str, topic_name: str) -> set[str]:
        options = self._broker.options
        url = f"http://{http_address}/channels?topic={url_quote(topic_name)}"
        try:
            answer = await ask(
                NSQLOOKUPD,
                "GET",
                url,
                self._broker.lookup_credentials,
                connect_timeout_s=options.http_client_connect_timeout / NS_PER_S,
                request_timeout_s=options.http_client_request_timeout / NS_PER_S,
                max_body_size=_MAX_CHANNELS_SIZE,
            )
            if answer.status != 200:
                raise PeerFailed(f"GET {url}: status {answer.status}")
            names = orjson.loads(answer.body)["channels"]
            if not isinstance(names, list):
                raise PeerFailed(f"GET {url}: channels is not a list")
            return await _permanent_names(names)
        except (NSQError, ValueError, TypeError, KeyError) as error:
            self._broker.log.warn(
                "failed to query nsqlookupd for channels to pre-create for topic %s - %s", topic_name, error
            )
            return set()


async def _permanent_names(names: list[object]) -> set[str]:
    """Those of the values that name a channel which is not ephemeral; lets the loop turn now and then."""
    found: set[str] = set()
    for start in range(0, len(names), _NAMES_PER_TURN):
        found.update(
            name
            for name in names[start : start + _NAMES_PER_TURN]
            if isinstance(name, str) and is_valid_name(name) and not is_ephemeral(name)
        )
        await asyncio.sleep(0)
    return found
