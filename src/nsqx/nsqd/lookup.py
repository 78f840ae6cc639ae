"""nsqd's side of discovery: registers topics and channels with every nsqlookupd, and queries channels of new topics.

Each nsqlookupd has a task of its own, so a dead, slow or faulty one delays neither the others nor any message. After
every connect all topics and channels are registered. Later changes are sent as they happen. A change while not
connected makes the task connect at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from nsqx.cluster.http import HTTPSession
from nsqx.cluster.json_fields import items
from nsqx.cluster.lookupd import LookupdClient
from nsqx.errors import ConfigError, NSQError, RequestFailed
from nsqx.names import is_ephemeral, is_valid_name
from nsqx.net.address import TCPAddress, format_host_port, parse_address
from nsqx.units import NS_PER_S
from nsqx.version import NSQ_VERSION
from nsqx.wire import lookup as wire
from nsqx.wire.gojson import InvalidJSON

if TYPE_CHECKING:
    from nsqx.nsqd.broker import Broker

PING_INTERVAL_S = 15.0
# As in Go nsqd: the time limit for connecting and for each answer.
_TIMEOUT_S = 1.0
# The pause between two connection attempts doubles from the first to the longest. A change ends it early, but not
# before the shortest pause: many new topics must not flood a dead nsqlookupd with attempts.
_RETRY_SOONEST_S = 0.01
_RETRY_FIRST_S = 0.05
_RETRY_LONGEST_S = 15.0
# After a connection that has lasted this long, the pauses start with the first one again.
_GOOD_CONNECTION_S = 5.0
# The limit of unanswered commands. Further commands wait in memory; too many of those end the connection.
_PIPELINE = 500
_MAX_WAITING = 100_000
# The largest answer of one nsqlookupd with the channels of a topic.
_MAX_CHANNELS_SIZE = 1024 * 1024
# The most channels from nsqlookupd that are created for a new topic.
MAX_CHANNELS = 1000
_NAMES_PER_TURN = 2000


class PeerFailed(NSQError):
    """nsqlookupd broke the protocol or refused a command; the text says how."""


class LookupPeer:
    """The connection to one nsqlookupd, for as long as it is configured."""

    def __init__(self, address: str, broker: Broker) -> None:
        self.address = address
        self.http_address = ""  # of its HTTP API, while connected
        self._broker = broker
        self._log = broker.log
        self._is_connected = False  # IDENTIFY was answered: every registration is or will be sent
        self._registrations: Iterator[bytes] = iter(())  # commands for what existed at connect, not yet sent
        self._changes: deque[bytes] = deque()  # commands for later changes, not yet sent
        self._unanswered: deque[bytes] = deque()
        self._answer_due_s = 0.0  # deadline of the first unanswered command
        self._timeout: asyncio.Timeout | None = None  # of the read in progress
        self._has_changes = asyncio.Event()  # a change happened while not connected
        self.is_registered = asyncio.Event()  # set once everything has been registered
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._task = asyncio.create_task(self._run())

    def send(self, command: bytes) -> None:
        """Send a change; if not connected, connect at once, which registers everything."""
        if not self._is_connected:
            self._has_changes.set()
            return
        self._log.info("LOOKUPD(%s): %s", self.address, command.decode().strip())
        self._changes.append(command)
        self._send_waiting()

    async def close(self) -> None:
        """Disconnect permanently."""
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
        """Wait before the next attempt; returns True early if there is a change and the shortest pause is over."""
        await asyncio.sleep(_RETRY_SOONEST_S)
        try:
            async with asyncio.timeout(pause_s - _RETRY_SOONEST_S):
                return await self._has_changes.wait()
        except TimeoutError:
            return False

    async def _connect(self) -> None:
        """Connect and send IDENTIFY; from here on every registration is sent."""
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
        """Send waiting commands, registrations first, up to the limit of unanswered commands."""
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
        """Restart the time limit for the next answer."""
        self._answer_due_s = asyncio.get_running_loop().time() + _TIMEOUT_S
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(self._answer_due_s)

    async def _converse(self) -> None:
        """Read answers, and send a PING after a long silence; raises PeerFailed or OSError when the connection ends."""
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
        """Return the next answer, or None if a PING is due. Raises TimeoutError if an answer is overdue."""
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
    """Yield a REGISTER command for every channel, and for every topic without channels.

    Commands are created when they are sent. A topic that has been deleted since may still be registered, but its
    UNREGISTER follows after all of these.
    """
    for topic in list(broker.topics.values()):
        if not topic.channels:
            yield wire.encode_register(topic.name)
        for channel_name in list(topic.channels):
            yield wire.encode_register(topic.name, channel_name)


class Lookup:
    """All configured nsqlookupds. The broker reports every creation and deletion here."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._peers: dict[str, LookupPeer] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def set_addresses(self, addresses: Iterable[str]) -> None:
        """Connect to the new addresses, and disconnect from those that are no longer listed."""
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
        """Disconnect from all nsqlookupds."""
        self.set_addresses([])
        if self._closing:
            await asyncio.wait(self._closing)

    def registered(self, topic_name: str, channel_name: str = "") -> None:
        """Register a new topic or channel."""
        for peer in self._peers.values():
            peer.send(wire.encode_register(topic_name, channel_name))

    def unregistered(self, topic_name: str, channel_name: str = "") -> None:
        """Unregister a deleted topic or channel."""
        for peer in self._peers.values():
            peer.send(wire.encode_unregister(topic_name, channel_name))

    async def settled(self) -> None:
        """Wait until this nsqd has registered everything with every nsqlookupd once."""
        await asyncio.gather(*(peer.is_registered.wait() for peer in self._peers.values()))

    def has_connection(self) -> bool:
        """True if at least one nsqlookupd is connected."""
        return any(peer.http_address for peer in self._peers.values())

    async def channels_of(self, topic_name: str) -> list[str]:
        """Return the channels that a topic has on other nsqds, at most MAX_CHANNELS; never raises.

        All connected nsqlookupds are queried concurrently. Ephemeral channels are left out: they exist only while they
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
        http = HTTPSession(
            self._broker.lookup_credentials,
            options.http_client_connect_timeout / NS_PER_S,
            options.http_client_request_timeout / NS_PER_S,
            max_body_size=_MAX_CHANNELS_SIZE,
        )
        try:
            document = await LookupdClient(http, http_address).get("/channels", topic=topic_name)
            return await _permanent_names(items(document, "channels") or [])
        except RequestFailed as error:
            self._broker.log.warn(
                "failed to query nsqlookupd for channels to pre-create for topic %s - %s", topic_name, error
            )
            return set()


async def _permanent_names(names: list[object]) -> set[str]:
    """Return the valid names of non-ephemeral channels; yields to the loop from time to time."""
    found: set[str] = set()
    for start in range(0, len(names), _NAMES_PER_TURN):
        found.update(
            name
            for name in names[start : start + _NAMES_PER_TURN]
            if isinstance(name, str) and is_valid_name(name) and not is_ephemeral(name)
        )
        await asyncio.sleep(0)
    return found
