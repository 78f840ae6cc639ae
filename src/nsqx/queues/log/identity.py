"""The identity of a log, which is in the file ``id`` of its directory, in commit files and in every segment.

A topic that is deleted and created again gets a new log with another id, so its offsets and message ids cannot be
mistaken for those of the old one. The id of a message is the first id of the log plus the offset, in the layout of
``wire.message``: nothing is stored for it.
"""

from __future__ import annotations

import json
import os
from typing import NamedTuple
from zlib import crc32

from nsqx.queues.files import SEGMENT, read_file, replace_file
from nsqx.wire import byteops
from nsqx.wire.message import NODE_MASK, advance_id

_FILE = "id"
_TICK_SHIFT = 22


class LogIdentity(NamedTuple):
    """The facts about a log that never change. ``lease`` is the lease of a log without any state."""

    topic: str
    log_id: int
    first_id: int
    created_ns: int
    lease: int

    def id_number(self, offset: int) -> int:
        """Return the number of the message id at an offset."""
        return advance_id(self.first_id, offset)

    def offset(self, id_number: int) -> int:
        """Return the offset of a message id; the result is negative or too large for an id of another log."""
        return byteops.linear_id(id_number) - byteops.linear_id(self.first_id)

    def encode(self) -> bytes:
        """Return the content of the file: JSON, and its CRC-32 on a line of its own."""
        fields = self._asdict() | {"log_id": f"{self.log_id:016x}"}
        text = json.dumps(fields).encode()
        return b"%s\n%08x\n" % (text, crc32(text))


def next_tick(id_number: int, node_of: int) -> int:
    """Return the first id number after the tick of ``id_number``, with the node id of ``node_of``."""
    return (id_number >> _TICK_SHIFT) + 1 << _TICK_SHIFT | node_of & NODE_MASK


def decode_identity(data: bytes) -> LogIdentity:
    """Return the identity in ``data``; raises ValueError if it has none."""
    text, _, crc = data.partition(b"\n")
    if crc != b"%08x\n" % crc32(text):
        raise ValueError("the identity of the log is damaged")
    try:
        fields = json.loads(text)
        identity = LogIdentity(**{**fields, "log_id": int(fields["log_id"], 16)})
    except (TypeError, KeyError) as error:
        raise ValueError(f"not the identity of a log: {error}") from error
    if not isinstance(identity.topic, str) or not all(isinstance(number, int) for number in identity[1:]):
        raise ValueError("not the identity of a log")
    return identity


def load_identity(directory: str) -> LogIdentity:
    """Return the identity of the log in a directory; raises OSError or ValueError."""
    return decode_identity(read_file(SEGMENT, os.path.join(directory, _FILE)))


def save_identity(directory: str, identity: LogIdentity) -> None:
    """Write the identity of a log, durably."""
    replace_file(os.path.join(directory, _FILE), identity.encode(), SEGMENT)
