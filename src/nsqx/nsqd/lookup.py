"""nsqd's side of discovery: telling every nsqlookupd what is here, and asking which channels a new topic has.

Each nsqlookupd has a task of its own, so one that is dead, slow or wrong holds up neither the others nor a single
message. After every connect it is told everything anew; what changes after that is sent as it happens.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import quote as url_quote

import orjson

from nsqx.errors import ConfigError, NSQError
from nsqx.names import is_ephemeral, is_valid_name
from nsqx.net import http_client
from nsqx.net.address import TCPAddress, format_host_port, parse_address
from nsqx.version import NSQ_VERSION
from nsqx.wire import lookup as wire
from nsqx.wire.gojson import InvalidJSON

if TYPE_CHECKING:
    from nsqx.nsqd.broker import Broker

PING_INTERVAL_S = 15.0
# As in Go nsqd: connecting, and each answer, may take this long.
_TIMEOUT_S = 1.0
_RETRY_FIRST_S = 0.5
_RETRY_LONGEST_S = 15.0
# So many commands are under way before their answers are awaited.
_PIPELINE = 500
_MAX_CHANNELS_SIZE = 8 * 1024 * 1024
_NS_PER_S = 1_000_000_000


class PeerFailed(NSQError):
    """nsqlookupd did not do what it should; the text says what."""


class LookupPeer:
    """The connection to one nsqlookupd, for as long as it is configured."""

    def __init__(self, address: str, broker: Broker) -> None:
        self.address = address
        self.http_address = ""  # where its HTTP API is, while connected
        self._broker = broker
        self._log = broker.log
        self._commands: deque[bytes] = deque()
        self._is_told = False  # what there is has been or is being told, so changes are to be sent
        self._wanted = asyncio.Event()
        self.was_told = asyncio.Event()  # once, everything that was here
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._task = asyncio.create_task(self._run())

    def send(self, command: bytes) -> None:
        """Send soon; while not connected there is no need, because connecting tells everything."""
        if self._is_told:
            self._commands.append(command)
            self._wanted.set()

    async def close(self) -> None:
        """Disconnect for good."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        retry_s = _RETRY_FIRST_S
        while True:
            try:
                await self._connect()
                retry_s = _RETRY_FIRST_S
                await self._keep_told()
            except (OSError, TimeoutError, EOFError, ValueError, NSQError) as error:
                self._log.error("LOOKUPD(%s): %s", self.address, str(error) or type(error).__name__)
            finally:
                self._disconnect()
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _RETRY_LONGEST_S)

    async def _connect(self) -> None:
        self._log.info("LOOKUP connecting to %s", self.address)
        address = parse_address(self.address)
        if not isinstance(address, TCPAddress):
            raise ConfigError(f"{self.address} is not host:port")
        async with asyncio.timeout(_TIMEOUT_S):
            self._reader, self._writer = await asyncio.open_connection(
                address.host or "localhost", address.port, ssl=self._broker.lookup_tls_context
            )
        self._writer.write(wire.MAGIC + wire.encode_identify(self._announcement()))
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
        # From here on changes are queued; what was queued before is in what is told now.
        self._is_told = True
        await self._tell(_registrations(self._broker))
        self.was_told.set()

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

    async def _keep_told(self) -> None:
        while True:
            if not await self._has_news():
                self._log.debug("LOOKUPD(%s): sending heartbeat", self.address)
                await self._tell([wire.PING])
            self._wanted.clear()
            commands = list(self._commands)
            self._commands.clear()
            for command in commands:
                self._log.info("LOOKUPD(%s): %s", self.address, command.decode().strip())
            await self._tell(commands)

    async def _has_news(self) -> bool:
        """Wait for something to tell, False if it is time for a PING; raises PeerFailed if the connection ends."""
        assert self._reader is not None
        news = asyncio.create_task(self._wanted.wait())
        unasked = asyncio.create_task(self._reader.read(1))
        try:
            await asyncio.wait((news, unasked), timeout=PING_INTERVAL_S, return_when=asyncio.FIRST_COMPLETED)
            if unasked.done():
                raise PeerFailed("unexpected answer" if unasked.result() else "connection closed")
            return news.done()
        finally:
            news.cancel()
            unasked.cancel()
            await asyncio.gather(news, unasked, return_exceptions=True)

    async def _tell(self, commands: list[bytes]) -> None:
        """Send commands and await their answers, a bounded number at a time."""
        assert self._writer is not None
        for start in range(0, len(commands), _PIPELINE):
            some = commands[start : start + _PIPELINE]
            if self._writer.is_closing():
                raise PeerFailed("connection lost")
            self._writer.write(b"".join(some))
            for command in some:
                answer = await self._read_answer()
                if answer != wire.OK:
                    text = answer[:200].decode("utf-8", "replace")
                    raise PeerFailed(f"{command.decode().strip()} - lookupd returned {text}")

    async def _read_answer(self) -> bytes:
        assert self._reader is not None
        async with asyncio.timeout(_TIMEOUT_S):
            size = int.from_bytes(await self._reader.readexactly(4), "big", signed=True)
            if not 0 <= size <= wire.MAX_ANSWER_SIZE:
                raise PeerFailed(f"invalid response size {size}")
            answer = await self._reader.readexactly(size)
        if wire.is_refusal(answer):
            raise PeerFailed(f"lookupd returned {answer[:200].decode('utf-8', 'replace')}")
        return answer

    def _disconnect(self) -> None:
        self.http_address = ""
        self._is_told = False
        self._commands.clear()
        if self._writer is not None:
            self._writer.close()
            self._writer = self._reader = None


def _registrations(broker: Broker) -> list[bytes]:
    """REGISTER for everything here: channels, and topics that have none."""
    commands = []
    for topic in broker.topics.values():
        if not topic.channels:
            commands.append(wire.encode_register(topic.name))
        commands += [wire.encode_register(topic.name, channel_name) for channel_name in topic.channels]
    return commands


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
        await asyncio.gather(*(peer.was_told.wait() for peer in self._peers.values()))

    def can_be_asked(self) -> bool:
        """True if some nsqlookupd is connected."""
        return any(peer.http_address for peer in self._peers.values())

    async def channels_of(self, topic_name: str) -> list[str]:
        """The channels that a topic has elsewhere and must have here; never raises, asks all at once.

        Ephemeral ones are left out: they exist while they have a consumer, and there is none here.
        """
        addresses = [peer.http_address for peer in self._peers.values() if peer.http_address]
        answers = await asyncio.gather(*(self._ask_channels(address, topic_name) for address in addresses))
        return sorted({name for names in answers for name in names if not is_ephemeral(name)})

    async def _ask_channels(self, http_address: str, topic_name: str) -> list[str]:
        options = self._broker.options
        url = f"http://{http_address}/channels?topic={url_quote(topic_name)}"
        try:
            answer = await http_client.request(
                "GET",
                url,
                headers={"Accept": "application/vnd.nsq; version=1.0"},
                connect_timeout_s=options.http_client_connect_timeout / _NS_PER_S,
                request_timeout_s=options.http_client_request_timeout / _NS_PER_S,
                max_body_size=_MAX_CHANNELS_SIZE,
            )
            if answer.status != 200:
                raise PeerFailed(f"GET {url}: status {answer.status}")
            names = orjson.loads(answer.body)["channels"]
            if not isinstance(names, list):
                raise PeerFailed(f"GET {url}: channels is not a list")
            return [name for name in names if isinstance(name, str) and is_valid_name(name)]
        except (NSQError, ValueError, TypeError, KeyError) as error:
            self._broker.log.warn(
                "failed to query nsqlookupd for channels to pre-create for topic %s - %s", topic_name, error
            )
            return []
