"""The state of one nsqlookupd: the registry, and everything else that its sessions and its HTTP API share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsqx.gotext import quote
from nsqx.net.round_robin import RoundRobin
from nsqx.nsqlookupd.registry import Registry

if TYPE_CHECKING:
    from nsqx.log import Log
    from nsqx.nsqlookupd.connection import LookupdConnection
    from nsqx.nsqlookupd.options import NsqlookupdOptions


@dataclass(slots=True)
class Counts:
    """Counts of events since the start, for /metrics."""

    connections: int = 0
    registrations: int = 0
    unregistrations: int = 0
    pings: int = 0
    lookups: int = 0


class Lookupd:
    """The state of one nsqlookupd; used by one event loop only."""

    __slots__ = ("connections", "counts", "introduction", "log", "options", "registry", "round_robin")

    def __init__(self, options: NsqlookupdOptions, log: Log) -> None:
        self.options = options
        self.log = log
        self.registry = Registry(options.inactive_producer_timeout, options.tombstone_lifetime)
        self.introduction = b""
        """The answer to IDENTIFY; set once the ports are known."""
        self.counts = Counts()
        self.connections: set[LookupdConnection] = set()
        self.round_robin = RoundRobin()


def on_one_line(text: str) -> str:
    """Return untrusted ``text`` for a log line: unchanged, or quoted if it could forge a line."""
    return text if text.isprintable() else quote(text)
