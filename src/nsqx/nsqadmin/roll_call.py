"""Which nsqds are not there that were, or should be: what the page warns of.

nsqlookupd forgets an nsqd as soon as its connection breaks, so that from the list of nodes alone nobody could tell a
crash from a smaller cluster. Knows no sockets; the poller tells who was asked and how it went.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Who has not been listed for so long was probably taken away on purpose.
FORGOTTEN_AFTER_S = 900.0
_MAX_NODES = 10_000
_UNLISTED = "no nsqlookupd lists it any more"


class RollCall:
    """Notes who answers."""

    def __init__(self) -> None:
        self._last_seen_s: dict[str, float] = {}
        self.missing: list[dict[str, Any]] = []
        """Address, when it last answered (null if never), and why it is missed, sorted by address."""

    def note(self, failures: Mapping[str, str], answered: set[str], now_s: float) -> None:
        """One round: who failed and why, and who answered."""
        for address in answered:
            self._last_seen_s[address] = now_s
        reasons = dict(failures)
        for address, seen_s in list(self._last_seen_s.items()):
            if address in answered or address in failures:
                continue
            if now_s - seen_s > FORGOTTEN_AFTER_S or len(self._last_seen_s) > _MAX_NODES:
                del self._last_seen_s[address]
            else:
                reasons[address] = _UNLISTED
        self.missing = [
            {"address": address, "last_seen_s": self._last_seen_s.get(address), "reason": reason}
            for address, reason in sorted(reasons.items())
        ]
