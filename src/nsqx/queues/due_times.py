"""The file in which the due times of deferred messages survive a restart.

The messages are in the disk queue, which Go nsqd reads too. Their due times are in a file that Go nsqd ignores:
``<name>.deferred.dat``.

      0        8                16
      +--------+----------------+-------------------------------------------+----
      |NSQXDUE1| start, uint64  | id, 16 bytes | noted, int64 | due, int64  | ...
      +--------+----------------+-------------------------------------------+----

``start`` is the position of the first entry in use. ``noted`` and ``due`` are wall clock times in nanoseconds: when the
entry was created, and when its message is due. An entry without a message is harmless. Earlier versions wrote JSON
without ``noted``: ``{"due": {"<message id>": <due>}}``.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

import orjson

from nsqx.queues.files import DUE, read_file, remove_if_there, replace_file, sync_directory

MAGIC = b"NSQXDUE1"
HEADER = struct.Struct(">8sQ")
ENTRY = struct.Struct(">16sqq")
# An entry with a later due time (after the year 2116) is damaged.
_MAX_DUE_NS = 1 << 62


class DueTime(NamedTuple):
    """When a message is due, and when that was stored; both in wall-clock time."""

    noted_ns: int
    due_ns: int

    def delay_ns(self, wall_ns: int) -> int:
        """Return how long the message must still wait.

        If the clock was set back, the message waits no longer than its original delay.
        """
        return max(0, self.due_ns - max(wall_ns, self.noted_ns))


def due_times_path(directory: str, name: str) -> str:
    """Return the path of the due times of the queue ``name``."""
    return os.path.join(directory, f"{name}.deferred.dat")


def encode_entries(due_times: dict[bytes, DueTime]) -> bytes:
    """Encode ``due_times`` as entries of the file."""
    return b"".join(ENTRY.pack(message_id, *due_time) for message_id, due_time in due_times.items())


def decode_entries(data: bytes) -> dict[bytes, DueTime]:
    """Return the entries in ``data``, without damaged entries and an incomplete one at the end."""
    whole = data[: len(data) - len(data) % ENTRY.size]
    return {
        message_id: DueTime(noted_ns, due_ns)
        for message_id, noted_ns, due_ns in ENTRY.iter_unpack(whole)
        if 0 <= noted_ns <= due_ns < _MAX_DUE_NS
    }


def decode_start(header: bytes) -> int:
    """Return the position of the first entry in use; raises ValueError if ``header`` is invalid."""
    if len(header) < HEADER.size or not header.startswith(MAGIC):
        raise ValueError("not a due times file")
    start: int = HEADER.unpack_from(header)[1]
    if start < HEADER.size:
        raise ValueError("not a due times file")
    return start


def save_due_times(directory: str, name: str, due_times: dict[bytes, DueTime]) -> None:
    """Replace the file, or remove it if there are no due times."""
    path = due_times_path(directory, name)
    if due_times:
        replace_file(path, HEADER.pack(MAGIC, HEADER.size) + encode_entries(due_times), DUE)
    elif os.path.exists(path):
        remove_if_there(DUE, path)
        sync_directory(directory)


def load_due_times(directory: str, name: str, max_delay_ns: int = 0) -> dict[bytes, DueTime]:
    """Return the saved due times, or none without a file; raises ValueError if it is not a due times file.

    ``max_delay_ns`` is the longest possible delay. It limits the entries of earlier versions.
    """
    try:
        data = read_file(DUE, due_times_path(directory, name))
    except FileNotFoundError:
        return {}
    if not data.startswith(b"{"):
        return decode_entries(data[decode_start(data) :])
    content = orjson.loads(data)
    due = content.get("due") if isinstance(content, dict) else None
    if not isinstance(due, dict) or not all(type(due_ns) is int and 0 <= due_ns < 1 << 63 for due_ns in due.values()):
        raise ValueError("not a due times file")
    return {
        message_id.encode("latin-1"): DueTime(max(0, due_ns - max_delay_ns), due_ns)
        for message_id, due_ns in due.items()
    }
