"""Byte primitives: the operations that compiled modules do on raw memory.

This module has two implementations, like ``encode`` and ``queues.checksums``. Uncompiled modules call the functions
below. Compiled modules call the inline C functions of the same names in ``byteops.pxd``, because
``from nsqx.wire import byteops`` resolves to that file at compile time. tests/unit/wire/test_byteops.py compares the
two. Neither checks bounds: callers do.
"""

from __future__ import annotations

_HEX_DIGITS = frozenset(b"0123456789abcdef")


def int32_at(data: bytes | bytearray, position: int) -> int:
    """Return the signed big-endian 32-bit number at ``position``."""
    return int.from_bytes(data[position : position + 4], "big", signed=True)


def int64_at(data: bytes | bytearray, position: int) -> int:
    """Return the signed big-endian 64-bit number at ``position``."""
    return int.from_bytes(data[position : position + 8], "big", signed=True)


def uint16_at(data: bytes | bytearray, position: int) -> int:
    """Return the unsigned big-endian 16-bit number at ``position``."""
    return int.from_bytes(data[position : position + 2], "big")


def cut(data: bytes | bytearray, start: int, end: int) -> bytes:
    """Return a copy of ``data[start:end]`` as bytes."""
    return bytes(data[start:end])


def copy_into(out: bytearray, position: int, data: bytes | bytearray, start: int, end: int) -> None:
    """Overwrite the bytes of ``out`` from ``position`` on with ``data[start:end]``."""
    out[position : position + end - start] = data[start:end]


def is_greater_id(data: bytes | bytearray, position: int, other: bytes | bytearray, other_position: int) -> bool:
    """True if the 16-byte id at ``position`` of ``data`` is greater than the one at ``other_position`` of ``other``."""
    return data[position : position + 16] > other[other_position : other_position + 16]


def newline_at(data: bytes | bytearray, start: int, end: int) -> int:
    """Return the position of the first newline in ``data[start:end]``, or -1."""
    return data.find(b"\n", start, end)


def begins_with(data: bytes | bytearray, text: bytes, start: int, end: int) -> bool:
    """True if ``data[start:end]`` starts with ``text``."""
    return data.startswith(text, start, end)


def is_finish(data: bytes | bytearray, position: int) -> bool:
    """True if the 21 bytes at ``position`` are ``FIN ``, 16 bytes of any content, and a newline."""
    return data[position : position + 4] == b"FIN " and data[position + 20] == 0x0A


def hex32_at(data: bytes | bytearray, position: int) -> int:
    """Return the number of the 8 hexadecimal digits at ``position``, or -1 if they are something else."""
    digits = data[position : position + 8]
    return int(digits, 16) if _HEX_DIGITS.issuperset(digits) else -1


def id_text(number: int) -> bytes:
    """Return the message id of a number: 16 hexadecimal digits."""
    return b"%016x" % (number & 0xFFFFFFFFFFFFFFFF)


def id_number(message_id: bytes | bytearray) -> int:
    """Return the number of a message id, or -1 if it is not 16 hexadecimal digits of a positive number."""
    if len(message_id) != 16 or not _HEX_DIGITS.issuperset(message_id) or message_id[0] > 0x37:
        return -1
    return int(message_id, 16)


def linear_id(number: int) -> int:
    """Return the number of a message id without the node id in it (see ``message``), so that ids are consecutive."""
    return (number >> 22) << 12 | number & 0xFFF


def append_sized(out: bytearray, data: bytes, start: int, end: int) -> None:
    """Append ``data[start:end]`` with its int32 size before it."""
    out += (end - start).to_bytes(4, "big")
    out += data[start:end]


def append_message(out: bytearray, timestamp: int, attempts: int, message_id: bytes, body: bytes) -> None:
    """Append a message frame (see ``frames``) to ``out``."""
    out += (30 + len(body)).to_bytes(4, "big")
    out += b"\x00\x00\x00\x02"
    out += timestamp.to_bytes(8, "big", signed=True)
    out += attempts.to_bytes(2, "big")
    out += message_id
    out += body


def append_message_from(
    out: bytearray, timestamp: int, attempts: int, number: int, data: bytes, start: int, end: int
) -> None:
    """Append a message frame with the body ``data[start:end]`` to ``out``."""
    append_message(out, timestamp, attempts, id_text(number), data[start:end])


def append_record(out: bytearray, timestamp: int, attempts: int, message_id: bytes, body: bytes) -> None:
    """Append a disk queue record (see ``message``) to ``out``."""
    out += (26 + len(body)).to_bytes(4, "big")
    out += timestamp.to_bytes(8, "big", signed=True)
    out += attempts.to_bytes(2, "big")
    out += message_id
    out += body


def append_record_from(out: bytearray, timestamp: int, number: int, data: bytes, start: int, end: int) -> None:
    """Append a message that was never delivered, with the body ``data[start:end]``, as a disk queue record."""
    append_record(out, timestamp, 0, id_text(number), data[start:end])
