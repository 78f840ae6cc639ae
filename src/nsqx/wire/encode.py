"""Encoders for the commands that clients send most often; they append to an output buffer.

Like ``byteops`` this module has two implementations. Uncompiled modules call the functions below. Compiled modules call
the inline C functions of the same names in ``encode.pxd``. tests/unit/wire/test_encode.py compares the two. Neither
checks its arguments.
"""

from __future__ import annotations


def append_sized(out: bytearray, head: bytes, body: bytes) -> None:
    r"""Append a command with a body: its line ``head`` (with newline), the int32 size, and ``body``."""
    out += head
    out += len(body).to_bytes(4, "big")
    out += body


def append_sized_line(out: bytearray, head: bytes, size: int) -> None:
    """Append the start of a command with a body of ``size`` bytes: its line ``head`` (with newline), and int32 size."""
    out += head
    out += size.to_bytes(4, "big")


def append_finish(out: bytearray, message_id: bytes | bytearray) -> None:
    r"""Append ``FIN <id>\n``; the id has 16 bytes."""
    out += b"FIN "
    out += message_id
    out += b"\n"


def append_finishes(out: bytearray, ids: bytearray, count: int) -> None:
    """Append a FIN for each of the first ``count`` ids of ``ids``, 16 bytes each."""
    for position in range(0, 16 * count, 16):
        append_finish(out, ids[position : position + 16])


def join_batch(bodies: list[bytes]) -> bytes:
    """Return the body of an MPUB: int32 count, then int32 size and body of each message."""
    pieces = [len(bodies).to_bytes(4, "big")]
    for body in bodies:
        pieces.append(len(body).to_bytes(4, "big"))
        pieces.append(body)
    return b"".join(pieces)
