"""The bytes of the head of a batch (see ``batch``).

Like ``queues.checksums`` this module has two implementations. Uncompiled modules call the function below. Compiled
modules call the inline C function of the same name in ``heads.pxd``. tests/unit/queues/log/test_log_heads.py compares
the two.
"""

from __future__ import annotations

from struct import Struct

from nsqx.queues import checksums

_FIELDS = Struct(">4sIQqIHHIQI")
_CRC = Struct(">II")
_UNSYNCED = Struct(">I")


def encode_head(
    size: int,
    first: int,
    timestamp: int,
    count: int,
    kind: int,
    extension_size: int,
    items_size: int,
    synced_below: int,
    tail_crc: int,
    seed: int,
    unsynced: int,
) -> bytes:
    """Return the head with its CRC, which starts with ``seed``. The numbers must fit into their fields."""
    fields = _FIELDS.pack(
        b"NXB1", size, first, timestamp, count, kind, extension_size, items_size, synced_below, tail_crc
    )
    crc = checksums.crc_of(fields, seed)
    if unsynced:
        crc = checksums.crc_of(_UNSYNCED.pack(unsynced), crc)
    return fields + _CRC.pack(crc, unsynced)
