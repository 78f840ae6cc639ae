"""The numbers of each nsqd as a whole: implementation and version, uptime, memory, disk, connections and rates.

Go's nsqd and nsqx report different numbers; those that a node does not report are None. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nsqx.nsqadmin.subject import NodeCounters

NSQX, GO = "nsqx", "go"


class NodeRows:
    """The rows of all nsqds at their last answers, by address."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, Any]] = {}

    def note(self, address: str, stats: dict[str, Any], counters: NodeCounters | None) -> None:
        """Take the answer of one nsqd; ``counters`` are its sums over topics and channels."""
        own = stats.get("node")
        own = own if isinstance(own, dict) else None
        row: dict[str, Any] = {
            "address": address,
            "implementation": GO if own is None else NSQX,
            "version": _text(stats.get("version")),
            "nsqx_version": "" if own is None else _text(own.get("nsqx_version")),
            "health": _text(stats.get("health")),
            "start_s": _count(stats.get("start_time")),
            "memory_bytes": _go_memory(stats) if own is None else _count(own.get("memory_bytes")) or None,
            "disk_free_bytes": None if own is None else _count(own.get("disk_free_bytes")),
            "disk_size_bytes": None if own is None else _count(own.get("disk_size_bytes")),
            "connections": None if own is None else _count(own.get("connections")),
        }
        if counters is not None:
            row |= {
                "answered_s": round(counters.time_s, 3),
                "consumers": counters.clients,
                "topics": counters.topics,
                "channels": counters.channels,
                "depth": counters.depth,
                "rate": round(counters.rate, 3),
                "rate_out": round(counters.rate_out, 3),
            }
        self._rows[address] = row

    def keep(self, addresses: Iterable[str]) -> None:
        """Forget the nsqds that the cluster does not list any more."""
        listed = set(addresses)
        self._rows = {address: row for address, row in self._rows.items() if address in listed}

    def is_go(self, address: str) -> bool:
        """True if the last answer was of Go's nsqd, so that its memory must be asked for."""
        row = self._rows.get(address)
        return row is not None and row["implementation"] == GO

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows, sorted by address."""
        return [self._rows[address] for address in sorted(self._rows)]


def _go_memory(stats: dict[str, Any]) -> int | None:
    """Return the heap that Go's nsqd uses; its process is larger."""
    memory = stats.get("memory")
    return _count(memory.get("heap_in_use_bytes")) if isinstance(memory, dict) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
