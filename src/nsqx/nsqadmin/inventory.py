"""Which nsqds belong to the cluster, which of them are missing, and what was on those when they last answered.

nsqlookupd forgets an nsqd as soon as its connection breaks, so its list cannot tell a crash from a smaller cluster. An
nsqd that answered once stays known here until it is forgotten on purpose. Knows no sockets and no files: the poller
reports who was asked and how it went, and the time is an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MAX_NODES = 10_000
_UNLISTED = "No nsqlookupd lists it any more."
_RUNNING = "No nsqlookupd lists it any more, but it answers: consumers do not find it."


class Holding(NamedTuple):
    """What one nsqd had of a topic: messages in the topic itself, and unfinished ones in each channel."""

    waiting: int
    channels: dict[str, int]

    @property
    def total(self) -> int:
        return self.waiting + sum(self.channels.values())


Holdings = dict[str, Holding]
"""By topic."""


@dataclass(slots=True)
class KnownNode:
    """An nsqd that has answered."""

    address: str
    first_seen_s: float
    last_seen_s: float
    hostname: str = ""
    holdings: Holdings = field(default_factory=dict)
    """As of when it was last asked for: while the node is up that may be a while ago."""

    @property
    def stranded(self) -> int:
        """How many messages it had; one that several channels had counts once for each."""
        return sum(holding.total for holding in self.holdings.values())


class Inventory:
    """All known nsqds, by address."""

    def __init__(self) -> None:
        self.known: dict[str, KnownNode] = {}
        self.missing: list[dict[str, Any]] = []
        """As nsqadmin's API shows them, sorted by address."""
        self.running: set[str] = set()
        """Missing nsqds that answer although no nsqlookupd lists them."""
        self._listed: set[str] = set()
        self._present: set[str] = set()

    def note(self, listed: Mapping[str, str], failures: Mapping[str, str], now_s: float) -> list[str]:
        """One poll: the host name of every nsqd that was asked, and why those failed that did.

        Returns the known nsqds that are missing now and were not at the last poll.
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

    def absent_holdings(self) -> list[Holdings]:
        """What each missing nsqd had."""
        return [self.known[each["address"]].holdings for each in self.missing if each["address"] in self.known]

    def set_holdings(self, address: str, holdings: Holdings) -> None:
        """What a known nsqd had when it last answered."""
        self.known[address].holdings = holdings
        for entry in self.missing:
            if entry["address"] == address:
                entry.update(_strandings(self.known[address]))

    def is_listed(self, address: str) -> bool:
        """True if the cluster names this nsqd, whether it answers or not."""
        return address in self._listed

    def forget(self, address: str) -> bool:
        """Do not miss this nsqd any longer; False if it is not known, or if the cluster still names it."""
        if address not in self.known or address in self._listed:
            return False
        del self.known[address]
        self.missing = [each for each in self.missing if each["address"] != address]
        return True

    def stranded_topics(self, address: str, limit: int) -> list[dict[str, Any]]:
        """The topics of which a known nsqd had most messages."""
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
            **_strandings(node),
        }

    def _successor(self, node: KnownNode) -> str:
        """An nsqd on a host of the same name that came after this one was lost: perhaps the same at a new address."""
        for other in self.known.values():
            is_later = other.address in self._present and other.first_seen_s > node.last_seen_s
            if is_later and node.hostname and other.hostname == node.hostname:
                return other.address
        return ""


def _strandings(node: KnownNode | None) -> dict[str, Any]:
    if node is None:
        return {"stranded": None, "topics": None}
    return {"stranded": node.stranded, "topics": len(node.holdings)}
