"""The nsqds of the cluster, which of them are missing, and which messages the missing ones had at their last answer.

nsqlookupd forgets an nsqd as soon as its connection breaks, so its list does not distinguish a crash from a removed
node. Here an nsqd that has answered once stays known until an operator forgets it. No sockets and no files: the poller
reports its results, and the time is an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MAX_NODES = 10_000
_UNLISTED = "No nsqlookupd lists it any more."
_RUNNING = "No nsqlookupd lists it any more, but it answers: consumers do not find it."


class Holding(NamedTuple):
    """The messages of one topic on one nsqd: those in the topic itself, and the unfinished ones of each channel."""

    waiting: int
    channels: dict[str, int]

    @property
    def total(self) -> int:
        return self.waiting + sum(self.channels.values())


Holdings = dict[str, Holding]
"""Holding by topic."""


@dataclass(slots=True)
class KnownNode:
    """An nsqd that has answered at least once."""

    address: str
    first_seen_s: float
    last_seen_s: float
    hostname: str = ""
    holdings: Holdings = field(default_factory=dict)
    """The messages by topic, updated when the nsqd is lost or the inventory is saved."""

    @property
    def stranded(self) -> int:
        """The number of messages, counted once for each channel that has them."""
        return sum(holding.total for holding in self.holdings.values())


class Inventory:
    """All known nsqds, by address."""

    def __init__(self) -> None:
        self.known: dict[str, KnownNode] = {}
        self.missing: list[dict[str, Any]] = []
        """The missing nsqds in the form of nsqadmin's API, sorted by address."""
        self.running: set[str] = set()
        """Missing nsqds that answer although no nsqlookupd lists them."""
        self._listed: set[str] = set()
        self._present: set[str] = set()

    def note(self, listed: Mapping[str, str], failures: Mapping[str, str], now_s: float) -> list[str]:
        """Record one poll; return the known nsqds that were present at the last poll and are missing now.

        ``listed`` maps the address of every queried nsqd to its host name, ``failures`` that of every failed nsqd to
        the reason.
        """
        answered = listed.keys() - failures.keys()
        for address in answered:
            node = self.known.get(address)
            if node is None:
                if len(self.known) >= MAX_NODES:
                    continue
                node = self.known[address] = KnownNode(address, now_s, now_s)
            node.last_seen_s = now_s
            node.hostname = listed[address] or node.hostname
        lost = [address for address in self.known if address in self._present and address not in answered]
        self._listed = set(listed)
        self._present = set(answered)
        reasons = dict(failures)
        for address in self.known.keys() - listed.keys():
            reasons[address] = _RUNNING if address in self.running else _UNLISTED
        self.missing = [self._entry(address, reason) for address, reason in sorted(reasons.items())]
        return lost

    def missing_holdings(self) -> list[Holdings]:
        """Return the messages of each missing nsqd."""
        return [self.known[each["address"]].holdings for each in self.missing if each["address"] in self.known]

    def set_holdings(self, address: str, holdings: Holdings) -> None:
        """Set the messages that a known nsqd had at its last answer."""
        self.known[address].holdings = holdings
        for entry in self.missing:
            if entry["address"] == address:
                entry.update(_stranded_fields(self.known[address]))

    def is_listed(self, address: str) -> bool:
        """True if the cluster lists this nsqd, even if it does not answer."""
        return address in self._listed

    def forget(self, address: str) -> bool:
        """Remove an nsqd from the inventory; return False if it is unknown or if the cluster still lists it."""
        if address not in self.known or address in self._listed:
            return False
        del self.known[address]
        self.missing = [each for each in self.missing if each["address"] != address]
        return True

    def stranded_topics(self, address: str, limit: int) -> list[dict[str, Any]]:
        """Return the topics of a known nsqd that had messages, those with most messages first."""
        node = self.known.get(address)
        held = [(name, each) for name, each in node.holdings.items() if each.total] if node is not None else []
        held.sort(key=lambda pair: (-pair[1].total, pair[0]))
        return [
            {"topic": name, "stranded": each.total, "waiting": each.waiting, "channels": each.channels}
            for name, each in held[:limit]
        ]

    def _entry(self, address: str, reason: str) -> dict[str, Any]:
        node = self.known.get(address)
        return {
            "address": address,
            "last_seen_s": None if node is None else node.last_seen_s,
            "reason": reason,
            "listed": address in self._listed,
            "maybe_at": "" if node is None else self._successor(node),
            **_stranded_fields(node),
        }

    def _successor(self, node: KnownNode) -> str:
        """Return an nsqd with the same host name that appeared after this one was lost: probably the same, moved."""
        for other in self.known.values():
            is_later = other.address in self._present and other.first_seen_s > node.last_seen_s
            if is_later and node.hostname and other.hostname == node.hostname:
                return other.address
        return ""


def _stranded_fields(node: KnownNode | None) -> dict[str, Any]:
    if node is None:
        return {"stranded": None, "topics": None}
    return {"stranded": node.stranded, "topics": len(node.holdings)}
