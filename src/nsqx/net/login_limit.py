"""A limit on wrong logins per client address. Time is an argument; memory is bounded.

Each address may be wrong a few times at once and then once per second. An address that has used up its attempts is
rejected without a check. A secret that was correct from an address before is never limited there, so a guessing
client does not lock out another one behind the same address.
"""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
from collections import OrderedDict
from functools import lru_cache

BURST = 10
PER_S = 1.0
_MAX_ADDRESSES = 10_000
_MAX_KNOWN = 10_000
_IPV6_NETWORK_BITS = 64


class LoginLimit:
    """Counts wrong logins. Stores secrets only as keyed digests."""

    def __init__(self) -> None:
        # By address: the number of attempts left, and the time of that number.
        self._attempts: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._known: OrderedDict[tuple[str, bytes], None] = OrderedDict()
        self._key = secrets.token_bytes(32)

    def allows(self, address: str, secret: bytes, now_s: float) -> bool:
        """True if a login may be checked."""
        if not self._attempts:
            return True
        network = _network(address)
        return self._attempts_left(network, now_s) >= 1 or self._digest(network, secret) in self._known

    def suspects(self, address: str, secret: bytes) -> bool:
        """True if this address has had wrong logins and has never been right with this secret."""
        network = _network(address)
        return network in self._attempts and self._digest(network, secret) not in self._known

    def wrong(self, address: str, now_s: float) -> bool:
        """Count a wrong login; return True if it used up the attempts."""
        network = _network(address)
        left = max(0.0, self._attempts_left(network, now_s) - 1)
        self._attempts[network] = left, now_s
        self._attempts.move_to_end(network)
        if len(self._attempts) > _MAX_ADDRESSES:
            self._attempts.popitem(last=False)
        return left < 1

    def right(self, address: str, secret: bytes) -> None:
        """Remember a secret that was correct from an address."""
        known = self._digest(_network(address), secret)
        self._known[known] = None
        self._known.move_to_end(known)
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)

    def _attempts_left(self, network: str, now_s: float) -> float:
        left, at_s = self._attempts.get(network, (float(BURST), now_s))
        return min(float(BURST), left + (now_s - at_s) * PER_S)

    def _digest(self, network: str, secret: bytes) -> tuple[str, bytes]:
        return network, hashlib.blake2b(secret, key=self._key, digest_size=16).digest()


@lru_cache(maxsize=1024)
def _network(address: str) -> str:
    """Return the unit that is counted: an IPv4 address, or the /64 network of an IPv6 address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, _IPV6_NETWORK_BITS), strict=False).network_address)
