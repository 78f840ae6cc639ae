"""Frames from nsqd to its clients.

      0            4            8
      +------------+------------+------ ... ------+
      | size int32 | type int32 | data            |      size counts the type and the data
      +------------+------------+------ ... ------+

Types: 0 response, 1 error, 2 message (its data is laid out in ``message``).
"""

from __future__ import annotations

RESPONSE = 0
ERROR = 1
MESSAGE = 2


def encode_frame(kind: int, data: bytes) -> bytes:
    """Return one frame, ready for the socket."""
    return (len(data) + 4).to_bytes(4, "big") + kind.to_bytes(4, "big") + data


OK = encode_frame(RESPONSE, b"OK")
HEARTBEAT = encode_frame(RESPONSE, b"_heartbeat_")
CLOSE_WAIT = encode_frame(RESPONSE, b"CLOSE_WAIT")
