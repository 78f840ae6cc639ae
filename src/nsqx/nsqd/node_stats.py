"""The numbers of one nsqd as a whole, in /stats and /metrics: its version, memory, disk and connections.

Go's nsqd has no such numbers, so a client that finds them knows that it asks nsqx. Reading them takes microseconds.
"""

import os
from typing import TYPE_CHECKING, Annotated, TypedDict

from nsqx.nsqd.memory import resident_bytes
from nsqx.version import VERSION

if TYPE_CHECKING:
    from nsqx.nsqd.broker import Broker


class NodeNumbers(TypedDict):
    """The ``node`` section of /stats."""

    nsqx_version: Annotated[str, "The version of the package. Go's nsqd does not have this section."]
    memory_bytes: Annotated[int, "Resident memory of the process; 0 if the system does not report it."]
    disk_free_bytes: Annotated[int | None, "Space on the disk of --data-path; null if it cannot be measured."]
    disk_size_bytes: Annotated[int | None, "Size of that disk; null if it cannot be measured."]
    connections: Annotated[int, "Open connections of the TCP protocol: consumers and producers."]


def node_numbers(broker: "Broker") -> NodeNumbers:
    """Return the current numbers."""
    free_bytes, size_bytes = _disk_space(broker.data_path)
    return {
        "nsqx_version": VERSION,
        "memory_bytes": resident_bytes(),
        "disk_free_bytes": free_bytes,
        "disk_size_bytes": size_bytes,
        "connections": len(broker.clients),
    }


def _disk_space(directory: str) -> tuple[int, int] | tuple[None, None]:
    """Return the bytes that are free for nsqd, and all bytes of the file system."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return None, None
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
