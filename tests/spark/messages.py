"""Messages as nsqd sends them, for columns."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from nsqx.wire.responses import FrameReader

if TYPE_CHECKING:
    from nsqx.spark.columns import Columns


def frame(message_id: bytes, time_ns: int, attempts: int, body: bytes) -> bytes:
    """The bytes of one message."""
    data = struct.pack(">qH16s", time_ns, attempts, message_id) + body
    return struct.pack(">ii", 4 + len(data), 2) + data


def add_message(columns: Columns, message_id: bytes, time_ns: int, attempts: int, body: bytes = b"x") -> None:
    """Let a message come."""
    reader = FrameReader()
    reader.feed(frame(message_id, time_ns, attempts, body))
    reader.next()
    columns.add(reader)
