"""Viewing a topic without taking messages from its consumers.

A topic without channels keeps its messages for its first channel. A command that views the topic through its own
ephemeral channel would be this first channel: it would receive the messages, and the rest would be lost with the
channel. The command therefore asks each nsqd over HTTP which channels the topic has before it subscribes there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsqx.client.consumer import Consumer
from nsqx.cluster.fan_out import ask_all
from nsqx.cluster.lookupd import LookupdClient
from nsqx.cluster.nsqd import NsqdClient
from nsqx.errors import ConfigError, ConnectFailed, RequestFailed
from nsqx.flags import BOOL, Flag
from nsqx.names import is_ephemeral
from nsqx.net.address import TCPAddress, format_host_port, parse_address
from nsqx.tools.utility import UtilityFailed, log_line

if TYPE_CHECKING:
    from nsqx.cluster.http import HTTPSession

TAKE_BACKLOG_FLAG = Flag(
    "take-backlog",
    BOOL,
    False,
    "without a channel: show a topic even if this takes messages that wait for its first channel",
)

_WAITING = "its messages wait for its first channel, and viewing would take them"


_MISSING = "does not exist"


class TopicMissing(UtilityFailed):
    """A topic that must exist does not."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Which topics a command may view, and its advice if it may not."""

    advice: str
    is_strict: bool
    """True if the topic must have a lasting channel, so messages published while viewing are kept too.

    False if only the messages that wait at the start are protected, and an nsqd that does not answer is accepted.
    """

    def refusal(self, entry: dict[str, Any] | None) -> str:
        """Return why a topic with this entry in /stats must not be viewed; empty if it may be."""
        channels = [each["channel_name"] for each in (entry or {}).get("channels") or []]
        if not self.is_strict:
            return f"has no channel: {_WAITING}" if entry and entry["depth"] and not channels else ""
        if entry is None:
            return _MISSING
        if not channels:
            return f"has no channel: {_WAITING}"
        if all(map(is_ephemeral, channels)):
            return f"has only ephemeral channels: after they are deleted {_WAITING}"
        return ""


class SafeTail:
    """Decides on which nsqds a topic may be viewed."""

    def __init__(
        self, topic: str, rule: Rule, nsqds: dict[str, str], lookupd_addresses: Sequence[str], http: HTTPSession
    ) -> None:
        """``nsqds`` are the HTTP addresses, by TCP address, of the given nsqds."""
        self._topic = topic
        self._rule = rule
        self._nsqds = dict(nsqds)
        self._lookupds = LookupdClient.at(http, lookupd_addresses)
        self._http = http
        self._refused: dict[str, str] = {}
        self._unchecked: dict[str, str] = {}

    async def check(self) -> None:
        """Raise UtilityFailed unless the topic may be viewed on every given nsqd, or on one that nsqlookupd found."""
        if self._lookupds:
            await self._find()
        refusals = [refusal for refusal in await asyncio.gather(*map(self.refusal, self._nsqds)) if refusal]
        if not self._nsqds and self._rule.is_strict:
            raise TopicMissing(f"no nsqd has topic {self._topic}. {self._rule.advice}")
        if refusals and (not self._lookupds or len(refusals) == len(self._nsqds)):
            is_missing = all(refusal.endswith(_MISSING) for refusal in refusals)
            raise (TopicMissing if is_missing else UtilityFailed)(f"{refusals[0]}. {self._rule.advice}")

    async def allows(self, address: str) -> bool:
        """Return True if the topic may be viewed on the nsqd at ``address``; if not, print a warning once."""
        refusal = await self.refusal(address)
        if refusal and self._refused.get(address) != refusal:
            log_line(f"WARNING: {refusal}. {self._rule.advice}")
        self._refused[address] = refusal
        return not refusal

    async def refusal(self, address: str) -> str:
        """Return why the topic must not be viewed on the nsqd at ``address``; empty if it may be."""
        try:
            if address not in self._nsqds and self._lookupds:
                await self._find()
            http_address = self._nsqds.get(address) or await self._neighbour(address)
            entries = await NsqdClient(self._http, http_address).stats(self._topic)
        except RequestFailed as error:
            text = f"cannot check which channels topic {self._topic} has on nsqd {address}: {error.reason}"
            if self._rule.is_strict:
                return text
            self._unchecked[address] = text
            return ""
        found = [entry for entry in entries if entry["topic_name"] == self._topic]
        reason = self._rule.refusal(found[0] if found else None)
        return f"topic {self._topic} on nsqd {address} {reason}" if reason else ""

    def attached(self, address: str) -> None:
        """Print a warning if the channels on the nsqd at ``address`` could not be checked."""
        text = self._unchecked.pop(address, "")
        if text:
            log_line(f"WARNING: {text}")

    async def _find(self) -> None:
        answers = await ask_all(self._lookupds, LookupdClient.lookup, self._topic)
        for nodes in answers.require_one().values:
            self._nsqds.update({node.tcp_address: node.http_address for node in nodes})

    async def _neighbour(self, tcp_address: str) -> str:
        """Return the HTTP address of an nsqd whose HTTP port is its TCP port plus one; raises RequestFailed."""
        try:
            address = parse_address(tcp_address)
        except ConfigError as error:
            raise RequestFailed(str(error)) from None
        if not isinstance(address, TCPAddress):
            raise RequestFailed("its HTTP address is unknown")
        http_address = format_host_port(address.host or "127.0.0.1", address.port + 1)
        if (await NsqdClient(self._http, http_address).info()).tcp_port != address.port:
            raise RequestFailed(f"{http_address} belongs to another nsqd")
        return http_address


class SafeTailConsumer(Consumer):
    """A consumer that subscribes only on the nsqds that ``safe_tail`` allows."""

    def __init__(self, *arguments: Any, safe_tail: SafeTail, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._safe_tail = safe_tail

    async def _connect(self, address: str) -> None:
        if address in self._subscriptions:
            return
        if await self._safe_tail.allows(address):
            await super()._connect(address)
            self._safe_tail.attached(address)
        elif address in self._named:
            # The client tries a given nsqd again later, and an nsqd from nsqlookupd at the next lookup.
            raise ConnectFailed(f"{address}: topic {self.topic} must not be viewed there now")
