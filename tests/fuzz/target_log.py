"""The parsers of topic logs on any bytes: batches, frames of commit files, and changes of the state.

The checksums of heads stop nearly every mutated input early. So each input is also checked with a corrected head: then
its sizes and counts are believed, and must not lead beyond the data.
"""

import struct
from collections.abc import Callable
from contextlib import suppress
from zlib import crc32

from log_directories import FIRST_ID, NOW_NS, items
from nsqx.queues.log.batch import (
    ADDRESSED,
    DEFERRED,
    DELTA,
    HEAD_SIZE,
    MAGIC,
    MESSAGES,
    LogBatch,
    addressed,
    deferred,
    find_head,
    new_batch,
    new_record,
    read_batch,
    read_head,
    salvage,
    seed_of,
)
from nsqx.queues.log.commit_file import FRAMES_AT, CommitHeader, Entry, FrameScanner, encode_frame, identity_record
from nsqx.queues.log.identity import LogIdentity
from nsqx.queues.log.state import Changes, Hole, LogState, skipped_end

IDENTITY = LogIdentity("t", 7, FIRST_ID, NOW_NS, 64)
SEED = seed_of(IDENTITY.log_id)
HEADER = CommitHeader(1, 1, 1 << 32, 99, bytes(16), FIRST_ID, False)
_UNUSED_AT = 52  # in the head of a batch, up to its end
_FRAME_HEAD_SIZE = 44
# Changes of the state are checked with offsets and numbers of channels below these limits.
_MAX_OFFSET = 2000
_MAX_CHANNEL = 4


# Batches


def batch_seeds() -> list[bytes]:
    """Return one batch of each kind, and several batches."""
    batches = [b"".join(batch.buffers(SEED, 3)) for batch in _batches()]
    return [*batches, b"".join(batches)]


def _batches() -> list[LogBatch]:
    changes = Changes()
    changes.create_channel(1, "c", 0)
    changes.finish(1, [(0, 2)])
    return [
        new_batch(MESSAGES, 5, 3, NOW_NS, items(b"one", b"", b"three" * 30)),
        new_batch(ADDRESSED, 8, 1, NOW_NS, items(b"again"), addressed(1, 3, NOW_NS)),
        new_batch(DEFERRED, 9, 1, NOW_NS, items(b"later"), deferred(NOW_NS)),
        new_record(DELTA, 4, changes.take()),
    ]


def check_batch(data: bytes) -> None:
    """Read a batch, or what is left of one."""
    _read_batches(data)
    _read_batches(_with_valid_head(data))


def _read_batches(data: bytes) -> None:
    position = find_head(data, 0, SEED)
    while position >= 0:
        head = read_head(data, position, SEED)
        assert head is not None
        tail = data[position + HEAD_SIZE : position + head.size]
        batch = read_batch(head, tail)
        if batch is not None:
            written = b"".join(batch.buffers(SEED, head.synced_below))
            assert written[:_UNUSED_AT] == data[position : position + _UNUSED_AT]
            assert written[HEAD_SIZE:] == tail
            assert len(list(batch.bodies())) == batch.count
        offset = head.first
        for part in salvage(head, tail):
            assert offset <= part.first <= part.end <= head.first + head.item_count, "an offset was used twice"
            assert all(body in data for _, body in part.bodies()), "a message that is not in the data"
            offset = part.end
        position = find_head(data, position + 1, SEED)


def _with_valid_head(data: bytes) -> bytes:
    """Return ``data`` as one batch: kind, count and size of the extension as they are, the rest of the head correct."""
    if len(data) < HEAD_SIZE:
        return data
    count, _, extension_size = struct.unpack_from(">IHH", data, 24)
    tail_size = len(data) - HEAD_SIZE
    count %= tail_size // 4 + 1
    extension_size %= tail_size - 4 * count + 1
    items_size = tail_size - 4 * count - extension_size
    tail_crc = crc32(data[len(data) - 4 * count :], crc32(data[HEAD_SIZE : HEAD_SIZE + extension_size]))
    head = struct.pack(">4sI", MAGIC, len(data)) + data[8:24] + struct.pack(">I", count) + data[28:30]
    head += struct.pack(">HI", extension_size, items_size) + data[36:44] + struct.pack(">I", tail_crc)
    return head + struct.pack(">I4x", crc32(head, SEED)) + data[HEAD_SIZE:]


# Frames


def frame_seeds() -> list[bytes]:
    """Return frames as they follow the header of a commit file."""
    entries = [Entry(1, identity_record(IDENTITY, 5, 3), seed_of(0), 0)]
    entries += [Entry(1, batch, SEED, 0) for batch in _batches()]
    first = b"".join(encode_frame(HEADER, HEADER.first_serial, 0, FIRST_ID, entries[:3]))
    second = b"".join(encode_frame(HEADER, HEADER.first_serial + 1, HEADER.first_serial, FIRST_ID, entries[3:]))
    return [first, first + second, first + second + bytes(500)]


def check_frames(data: bytes) -> None:
    """Scan what follows the header of a commit file."""
    _scan(data)
    _scan(_with_valid_frame(data))


def _scan(data: bytes) -> None:
    content = HEADER.encode() + data
    position, serial = FRAMES_AT, HEADER.first_serial
    for frame in FrameScanner(content, HEADER, [IDENTITY]).frames():
        assert frame.serial >= serial, "a serial was used twice"
        assert position <= frame.position < frame.position + frame.size <= len(content), "frames overlap"
        assert all(sum(map(len, (batch.extension, batch.items, batch.sums))) < frame.size for _, batch in frame.entries)
        position, serial = frame.position + frame.size, frame.serial + 1


def _with_valid_frame(data: bytes) -> bytes:
    """Return ``data`` as one frame with a valid head."""
    if len(data) < _FRAME_HEAD_SIZE:
        return data
    head = b"NXF1" + struct.pack(">IQ", len(data), HEADER.first_serial) + data[16 : _FRAME_HEAD_SIZE - 4]
    return head + struct.pack(">I", crc32(head, HEADER.seed)) + data[_FRAME_HEAD_SIZE:]


# Changes of the state


def state_seeds() -> list[bytes]:
    """Return scripts of changes: two channels that finish and requeue, a pause, deferred and lost messages."""
    return [
        bytes((0, 0, 1, 0, 0, 0, 0, 2, 0, 0)) + bytes((2, 0, 1, 0, 5, 0, 9)) + bytes((3, 0, 1, 0, 3, 0, 2)),
        bytes((0, 0, 1, 0, 0, 2, 0, 1, 1, 0, 1, 9, 9, 0, 1, 0, 50, 4, 0, 1, 0, 200, 6, 0, 1, 0, 7, 8, 0, 9, 0, 0)),
        b"",
    ]


def check_state(data: bytes) -> None:
    """Apply a script of changes; the state survives a snapshot, and any bytes are refused or read to their end."""
    with suppress(IndexError, ValueError):
        skipped_end(new_record(DELTA, 1, data))
    state = LogState(64)
    state.add(new_batch(MESSAGES, 0, _MAX_OFFSET // 2, NOW_NS, items(*[b""] * (_MAX_OFFSET // 2))))
    for serial, payload in enumerate(_script(data), 1):
        assert state.add(new_record(DELTA, serial, payload))
        assert not state.add(new_record(DELTA, serial, payload)), "a change was applied twice"
    copy = state.copy()
    assert copy.snapshot() == state.snapshot(), "a snapshot is not the state"
    for channel in state.channels.values():
        assert 0 <= channel.floor <= channel.next
        assert state.depth(channel.number, state.end) >= 0
    for end in (0, state.floor, state.end):
        assert state.is_finished(end) == (state.floor >= end)


def _script(data: bytes) -> list[bytes]:
    """Return the changes that ``data`` encodes: u8 kind and two u16 numbers each."""
    return [_change(*numbers) for numbers in struct.iter_unpack(">BHH", data[: min(len(data), 1000) // 5 * 5])]


def _change(kind: int, one: int, two: int) -> bytes:
    changes = Changes()
    channel, first = one % _MAX_CHANNEL + 1, two % _MAX_OFFSET
    end = first + one // _MAX_CHANNEL % _MAX_OFFSET
    kinds: tuple[Callable[[], None], ...] = (
        lambda: changes.create_channel(channel, f"c{channel}", first),
        lambda: changes.delete_channel(channel),
        lambda: changes.finish(channel, [(first, end)]),
        lambda: changes.requeue(channel, [(first, Hole(one, two))]),
        lambda: changes.move(channel, first),
        lambda: changes.pause_channel(channel, bool(two & 1)),
        lambda: changes.pause_topic(bool(one & 1), first),
        lambda: changes.set_lease(first),
        lambda: changes.set_setting(f"s{channel}", "x" * (two % 3)),
        lambda: changes.set_unclaimed(first),
        lambda: changes.remove_deferred([first]),
        lambda: changes.lose(first, end),
        lambda: changes.skip(first),
    )
    kinds[kind % len(kinds)]()
    return changes.take()
