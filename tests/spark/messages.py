"""Message frames as nsqd sends them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from nsqx.wire.responses import FrameReader

if TYPE_CHECKING:
    from nsqx.spark.columns import Columns


def frame(message_id: bytes, time_ns: int, attempts: int, body: bytes) -> bytes:
    """Return the frame of one message."""
    data = struct.pack(">qH16s", time_ns, attempts, message_id) + body
    return struct.pack(">ii", 4 + len(data), 2) + data


def add_message(columns: Columns, message_id: bytes, time_ns: int, attempts: int, body: bytes = b"x") -> None:
    """Add a message to the columns as if nsqd had sent it."""
    reader = FrameReader()
    reader.feed(frame(message_id, time_ns, attempts, body))
    reader.next()
    columns.add(reader)
