"""Frames from nsqd to its clients.

      0            4            8
      +------------+------------+------ ... ------+
      | size int32 | type int32 | data            |      size counts the type and the data
      +------------+------------+------ ... ------+

Types: 0 response, 1 error, 2 message (its data is laid out in ``message``). The data of an error is
``CODE description``.
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


def failed_finish_id(text: str) -> bytes:
    """Return the id in an error ``E_FIN_FAILED FIN id failed reason``; b"" if it is another error."""
    code, command, message_id, *_ = [*text.split(" ", 3), "", "", ""]
    return message_id.encode() if (code, command) == ("E_FIN_FAILED", "FIN") else b""
