# cython: wraparound=True, boundscheck=True
"""Commit files: batches of all logs, written together and made durable by one fdatasync.

      <data path>/nsqx.commit.0, nsqx.commit.1     more only while one of them cannot be used again

      0     header, and a copy of it at 4096: magic, generation, oldest generation in use, first serial not known to be
            durable, nonce, boot id, highest message id, clean flag, CRC-32
      8192  frames

      frame    magic "NXF1", u32 size, u64 serial, u64 synced below, u64 highest message id, u32 count, CRC of the body,
               CRC of the head; count times u32 log number, batch; end: magic "NXE1", u32 size, u64 serial, CRC of the
               body, CRC of the end

A file is used again and again. Each use is a *generation* with a higher number. The serial of a frame contains its
generation, and the nonce of the header seeds the CRCs, so frames of older generations are not valid.

The CRC of the body covers the heads, extensions and sums of the batches; the items have the sums. A frame is applied
completely or not at all: it is one atomic change of several logs. *Synced below* is a serial. Every frame below it was
durable when this one was written, so if such a frame is not intact, it was damaged later. Then its intact messages are
used. A frame that is not intact and not known to be durable was never acknowledged, and is ignored with all frames
after it in its generation. After a crash without a power cut, a frame with an intact end was written completely.

A log number is bound to a log by its identity, in the first frame of the generation that uses the number.

A header of zeros, or one that a power cut tore, belongs to a file that is new, or whose next generation has just begun:
it has no frames in use, although those of the generation before may still be there. A copy of the header is durably
zero before another header is written to it, so a torn copy lacks words, and has none of another header. If both copies
of the header are damaged, the frames are still found: a whole frame tells generation and nonce.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from nsqx.queues.files import (
    COMMIT,
    Buffer,
    cut_file,
    open_file,
    preallocate,
    read_file,
    sync_data,
    sync_directory,
    write_all,
    write_buffers,
)
from nsqx.queues.log.batch import (
    HEAD_SIZE,
    IDENTITY,
    MAGIC,
    BatchHead,
    LogBatch,
    decode_extension,
    encode_extension,
    new_batch,
    payload_of,
    read_batch,
    read_head,
    salvage,
    seed_of,
)
from nsqx.queues.log.identity import LogIdentity, decode_identity

if TYPE_CHECKING:
    from nsqx.queues.log.log import TopicLog

NAME_PREFIX = "nsqx.commit."
BAD_SUFFIX = ".bad"  # of a file with a damaged header, after its frames were used
_NAME = re.compile(re.escape(NAME_PREFIX) + r"\d+")
_HEADER_MAGIC, _FRAME_MAGIC, _END_MAGIC = b"NXC1", b"NXF1", b"NXE1"
_HEADER = Struct(">4sQQQQ16sQ?I")
_COPIES_AT = (0, 4096)
FRAMES_AT = 8192
_FRAME = Struct(">4sIQQQIII")
_FRAME_FIELDS = Struct(">4sIQQQII")  # without its CRC
_END = Struct(">4sIQII")
_END_FIELDS = Struct(">4sIQI")
_NUMBER = Struct(">I")
_NONCE = Struct(">Q")
FRAME_OVERHEAD = _FRAME.size + _END.size
ENTRY_OVERHEAD = _NUMBER.size
SERIAL_BITS = 32
_IDENTITY_SEED = seed_of(0)
_DURABLE_END = 20  # a tag of the extension of an identity
_DURABLE = Struct(">QQ")
_WORD = 8  # a part of a header that is never torn
_BOOT_ID_WORD = 5  # the word that has only the middle of the boot id
_BOOT_ID_ENDS = ((36, 40), (48, 52))  # the other parts of the boot id, in the words before and after
_CRC_MASK = 0xFFFFFFFF
# The table of the CRC-32, and for each value of the highest byte of an entry its index.
_CRC_TABLE = [crc32(bytes([index ^ 0xFF])) ^ 0xFF000000 for index in range(256)]
_CRC_INDEX = {entry >> 24: index for index, entry in enumerate(_CRC_TABLE)}


class Entry(NamedTuple):
    """A batch in a frame. ``seed`` is that of its head."""

    number: int
    batch: LogBatch
    seed: int
    synced_below: int


class CommitHeader(NamedTuple):
    """The header of a commit file."""

    generation: int
    oldest_in_use: int
    synced_below: int
    nonce: int
    boot_id: bytes
    highest_id: int
    is_clean: bool

    @property
    def first_serial(self) -> int:
        """The serial of the first frame."""
        return self.generation << SERIAL_BITS

    @property
    def seed(self) -> int:
        """The seed of the CRCs of the frames."""
        return crc32(_NONCE.pack(self.nonce))

    def encode(self) -> bytes:
        """Return the bytes from the start of the file to the first frame."""
        fields = _HEADER.pack(_HEADER_MAGIC, *self, 0)[: -_NUMBER.size]
        header = fields + _NUMBER.pack(crc32(fields))
        return header.ljust(_COPIES_AT[1], b"\0") + header.ljust(FRAMES_AT - _COPIES_AT[1], b"\0")


def decode_header(data: Buffer) -> CommitHeader | None:
    """Return the newest intact copy of the header; None if there is none."""
    found = []
    for position in _COPIES_AT:
        if len(data) - position < _HEADER.size:
            continue
        magic, *fields, crc = _HEADER.unpack_from(data, position)
        if magic == _HEADER_MAGIC and crc32(data[position : position + _HEADER.size - _NUMBER.size]) == crc:
            found.append(CommitHeader(*fields))
    return max(found, default=None)


def encode_frame(
    header: CommitHeader, serial: int, synced_below: int, highest_id: int, entries: list[Entry]
) -> list[Buffer]:
    """Return the bytes of a frame."""
    buffers: list[Buffer] = [b""]
    body_crc = 0
    size = FRAME_OVERHEAD + ENTRY_OVERHEAD * len(entries)
    for number, batch, seed, below in entries:
        head = _NUMBER.pack(number) + batch.head(seed, below)
        body_crc = crc32(batch.sums, crc32(head, body_crc))
        buffers += (head, batch.items, batch.sums)
        size += batch.size
    frame_seed = header.seed
    fields = _FRAME_FIELDS.pack(_FRAME_MAGIC, size, serial, synced_below, highest_id, len(entries), body_crc)
    buffers[0] = fields + _NUMBER.pack(crc32(fields, frame_seed))
    fields = _END_FIELDS.pack(_END_MAGIC, size, serial, body_crc)
    buffers.append(fields + _NUMBER.pack(crc32(fields, frame_seed)))
    return buffers


def identity_record(identity: LogIdentity, end: int, serial: int) -> LogBatch:
    """Return the batch that binds a log number to a log. Its segments are durable up to an offset and a serial."""
    payload = identity.encode()
    items = _NUMBER.pack(len(payload)) + payload
    return new_batch(IDENTITY, 0, 1, 0, items, encode_extension({_DURABLE_END: _DURABLE.pack(end, serial)}))


class CommitFile:
    """A commit file that this process writes. Methods that change the file raise OSError.

    A sync is fast if it only has to write blocks that exist: then the file system needs no commit of its journal. So
    small frames are followed by ``zeros_size`` zeros, over which the next ones are written.
    """

    __slots__ = (
        "_descriptor",
        "_used_size",
        "_zeros_size",
        "header",
        "is_doubtful",
        "last_counts",
        "next_serial",
        "numbers",
        "path",
        "position",
    )

    def __init__(self, path: str, zeros_size: int = 0) -> None:
        self.path = path
        self.header: CommitHeader | None = None  # of the current generation
        self.position = FRAMES_AT
        self.next_serial = 0
        self.is_doubtful = False  # a sync has failed, so the file is not used again
        # For each log the number of its batches when its last batch was put into this generation.
        self.last_counts: dict[TopicLog, int] = {}
        self.numbers: dict[TopicLog, int] = {}
        self._zeros_size = zeros_size
        self._used_size = 0  # the bytes that this process has written, in all generations
        self._descriptor = -1

    def open_once(self) -> None:
        """Open the file, which is created if it does not exist, and make its name durable."""
        if self._descriptor < 0:
            descriptor = open_file(COMMIT, self.path, os.O_RDWR | os.O_CREAT)
            try:
                sync_directory(os.path.dirname(self.path))
            except OSError:
                os.close(descriptor)
                raise
            self._descriptor = descriptor

    def allocate(self, size: int) -> None:
        """Reserve the space of ``size`` bytes, durably."""
        self.open_once()
        if os.fstat(self._descriptor).st_size < size:
            preallocate(COMMIT, self._descriptor, size)
            sync_data(COMMIT, self._descriptor)

    def cut_to(self, size: int) -> None:
        """Give the space above ``size`` bytes back. No frame may be in use."""
        if os.path.getsize(self.path) > size:
            self.open_once()
            cut_file(COMMIT, self._descriptor, size)

    def begin_generation(self, header: CommitHeader) -> None:
        """Forget the frames; the header is written with the first new one."""
        self.header = header
        self.position = FRAMES_AT
        self.next_serial = header.first_serial
        self.last_counts, self.numbers = {}, {}

    def write(self, buffers: list[Buffer]) -> None:
        """Write frames at the current position, and the header with the first frame."""
        assert self.header is not None
        self.open_once()
        if self.position > FRAMES_AT:
            self._write_frames(buffers)
            return
        # A power cut must not leave the old header with new frames, which would look like damaged ones.
        write_all(COMMIT, self._descriptor, bytes(FRAMES_AT), 0)
        sync_data(COMMIT, self._descriptor)
        # The header follows the frame. If the process ends in between, the next one must not see the new boot id alone.
        self._write_frames(buffers)
        write_all(COMMIT, self._descriptor, self.header.encode(), 0)

    def _write_frames(self, buffers: list[Buffer]) -> None:
        size = sum(map(len, buffers))
        end = self.position + size
        if end > self._used_size:
            zeros_size = self._zeros_size if size < self._zeros_size else 0
            buffers = [*buffers, bytes(zeros_size)]
            end += zeros_size
        write_buffers(COMMIT, self._descriptor, buffers, self.position)
        self._used_size = max(self._used_size, end)

    def sync(self) -> None:
        """Make everything written durable."""
        self.open_once()
        sync_data(COMMIT, self._descriptor)

    def save_header(self, header: CommitHeader) -> None:
        """Replace the header, durably. One copy is always intact, even if a write is torn.

        Each copy is erased first. Otherwise a torn copy could have parts of two headers, and would look like damage.
        """
        self.open_once()
        encoded = header.encode()[: _COPIES_AT[1]]
        for position in reversed(_COPIES_AT):
            for content in (bytes(len(encoded)), encoded):
                write_all(COMMIT, self._descriptor, content, position)
                sync_data(COMMIT, self._descriptor)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


# Reading


class Frame(NamedTuple):
    """A frame of a commit file, or what is left of it.

    ``is_written``: every byte was written, although some may have changed since. ``identities`` have for each log
    that is named for the first time the offset and the serial up to which its segments are durable. ``entries`` have
    log id and batch.
    """

    position: int
    size: int
    serial: int
    synced_below: int
    highest_id: int
    is_whole: bool
    is_written: bool
    identities: list[tuple[LogIdentity, tuple[int, int]]]
    entries: list[tuple[int, LogBatch]]


class FrameScanner:
    """Finds the frames of one generation. ``known`` are logs that the frames may name."""

    def __init__(self, data: bytes, header: CommitHeader, known: Iterable[LogIdentity]) -> None:
        self._data = memoryview(data)
        self._bytes = data
        self._header = header
        self._seed = header.seed
        self._known = list(known)
        self._identities: dict[int, LogIdentity] = {}  # by log number
        self._seeds: dict[int, int] = {}  # of the heads of their batches

    def frames(self) -> list[Frame]:
        """Return the frames in their order; serials are missing where nothing is left of a frame."""
        found: list[Frame] = []
        position, serial = FRAMES_AT, self._header.first_serial
        while True:
            bounds = self._frame_at(position, serial) or self._frame_of_end(position, serial)
            if bounds is None:
                position = self._find_frame(position, serial)
                if position < 0:
                    return found
                serial = _FRAME.unpack_from(self._data, position)[2]
                continue
            found.append(self._frame(position, *bounds))
            position += bounds[1]
            serial += 1

    def _fields(self, layout: Struct, magic: bytes, position: int) -> tuple[int, ...] | None:
        """Return the fields of a head or an end without magic and CRC; None if there is no valid one."""
        if position < 0 or len(self._data) - position < layout.size:
            return None
        found, *fields, crc = layout.unpack_from(self._data, position)
        if found != magic or crc32(self._data[position : position + layout.size - 4], self._seed) != crc:
            return None
        return tuple(fields)

    def _frame_at(self, position: int, serial: int) -> tuple[int, int, int, int, int] | None:
        """Return serial, size, synced below, highest id and CRC of the frame at ``position``, if it has this serial."""
        fields = self._fields(_FRAME, _FRAME_MAGIC, position)
        if fields is None or fields[1] != serial or position + fields[0] > len(self._data):
            return None
        size, _, synced_below, highest_id, _, body_crc = fields
        return serial, size, synced_below, highest_id, body_crc

    def _frame_of_end(self, position: int, serial: int) -> tuple[int, int, int, int, int] | None:
        """Return the same from the end of a frame whose head is damaged."""
        at = self._bytes.find(_END_MAGIC, position)
        while at >= 0:
            fields = self._fields(_END, _END_MAGIC, at)
            if fields is not None and fields[1] == serial and at + _END.size - fields[0] == position:
                return serial, fields[0], 0, 0, fields[2]
            at = self._bytes.find(_END_MAGIC, at + 1)
        return None

    def _find_frame(self, position: int, serial: int) -> int:
        """Return the position of the next frame with a higher serial; -1 if there is none."""
        at = self._bytes.find(_FRAME_MAGIC, position)
        while at >= 0:
            fields = self._fields(_FRAME, _FRAME_MAGIC, at)
            if fields is not None and fields[1] > serial and fields[1] >> SERIAL_BITS == self._header.generation:
                return at
            at = self._bytes.find(_FRAME_MAGIC, at + 1)
        return -1

    def _frame(self, position: int, serial: int, size: int, synced_below: int, highest_id: int, crc: int) -> Frame:
        end = position + size - _END.size
        fields = self._fields(_END, _END_MAGIC, end)
        is_written = fields is not None and fields == (size, serial, crc)
        identities: list[tuple[LogIdentity, tuple[int, int]]] = []
        entries: list[tuple[int, LogBatch]] = []
        is_whole = True
        body_crc = 0
        at = position + _FRAME.size
        while at < end:
            number: int = _NUMBER.unpack_from(self._data, at)[0] if end - at > _NUMBER.size else 0
            head = self._head(number, at)
            start = at + _NUMBER.size + HEAD_SIZE
            if head is None or start + head.size - HEAD_SIZE > end:
                is_whole = False
                at = self._next_entry(at + 1, end)
                continue
            tail = self._data[start : start + head.size - HEAD_SIZE]
            body_crc = crc32(self._data[at : start + head.extension_size], body_crc)
            body_crc = crc32(tail[head.extension_size + head.items_size :], body_crc)
            batch = read_batch(head, tail)
            if batch is None:
                is_whole = False
            for one in [batch] if batch is not None else salvage(head, tail):
                self._add(number, one, identities, entries)
            at = start + len(tail)
        is_whole = is_whole and body_crc == crc
        return Frame(position, size, serial, synced_below, highest_id, is_whole, is_written, identities, entries)

    def _head(self, number: int, at: int) -> BatchHead | None:
        """Return the head after the log number at ``at``; None if there is no valid one."""
        at += _NUMBER.size
        seed = self._seeds.get(number)
        head = read_head(self._data, at, seed) if seed is not None else None
        if head is None:
            head = read_head(self._data, at, _IDENTITY_SEED)
        if head is not None or seed is not None:
            return head
        # The identity of the log may be damaged. Its id is in its directory too.
        for identity in self._known:
            head = read_head(self._data, at, seed_of(identity.log_id))
            if head is not None:
                self._name(number, identity)
                return head
        return None

    def _name(self, number: int, identity: LogIdentity) -> None:
        self._identities[number] = identity
        self._seeds[number] = seed_of(identity.log_id)

    def _next_entry(self, at: int, end: int) -> int:
        """Return the position of the next entry with a valid head; ``end`` if there is none."""
        found = self._bytes.find(MAGIC, at + _NUMBER.size, end)
        while found >= 0:
            start = found - _NUMBER.size
            number = _NUMBER.unpack_from(self._data, start)[0]
            if self._head(number, start) is not None:
                return start
            found = self._bytes.find(MAGIC, found + 1, end)
        return end

    def _add(
        self,
        number: int,
        batch: LogBatch,
        identities: list[tuple[LogIdentity, tuple[int, int]]],
        entries: list[tuple[int, LogBatch]],
    ) -> None:
        if batch.kind == IDENTITY:
            try:
                identity = decode_identity(payload_of(batch))
            except ValueError:
                return
            self._name(number, identity)
            durable = decode_extension(batch.extension).get(_DURABLE_END)
            identities.append((identity, _DURABLE.unpack(durable) if durable is not None else (0, 0)))
        elif number in self._identities:
            entries.append((self._identities[number].log_id, batch))


def read_commit_file(path: str) -> tuple[CommitHeader | None, bytes]:
    """Return header and content of a commit file. Raises OSError."""
    data = read_file(COMMIT, path)
    return decode_header(data), data


def commit_paths(data_path: str) -> list[str]:
    """Return the paths of the commit files in a data directory. Raises OSError."""
    return [os.path.join(data_path, name) for name in sorted(os.listdir(data_path)) if _NAME.fullmatch(name)]


def is_header_damaged(data: bytes) -> bool:
    """True if no copy of the header is intact, and a power cut cannot be the reason.

    Between two headers a copy is durably zero, so after a power cut each of its words is right or zero. The frames do
    not matter: they are all there if the power is cut while the header is erased.
    """
    if decode_header(data) is not None:
        return False
    copies = [bytes(data[position : position + _HEADER.size]).ljust(_HEADER.size, b"\0") for position in _COPIES_AT]
    if not all(_is_magic_possible(copy) for copy in copies):
        return True
    # A file with an erased copy and no intact one is not in use.
    return all(any(copy) for copy in copies) and not all(_is_torn(copy) for copy in copies)


def _is_magic_possible(copy: bytes) -> bool:
    """True if each byte of the magic is right or zero."""
    return all(found in (0, right) for found, right in zip(copy, _HEADER_MAGIC, strict=False))


def _is_torn(copy: bytes) -> bool:
    """True if a word of a copy is missing. A copy with a changed bit has all of them."""
    words = [copy[at : at + _WORD] for at in range(0, _HEADER.size, _WORD)]
    if not all(any(copy[start:end]) for start, end in _BOOT_ID_ENDS):
        del words[_BOOT_ID_WORD]  # zero because there is no boot id
    if not all(any(word) for word in words[:-1]):
        return True
    # The last word is the last byte of the CRC, which is zero in one of 256 headers.
    crc = _NUMBER.pack(crc32(copy[: -_NUMBER.size]))
    return copy[-_NUMBER.size :] == crc[:-1] + b"\0"


def header_of_frames(data: bytes) -> CommitHeader | None:
    """Return a header for the frames of a file whose own is damaged, from the first whole frame; None without one.

    The boot id and the oldest generation in use are not known, so the header does not exclude a power cut.
    """
    at = data.find(_FRAME_MAGIC, FRAMES_AT)
    while at >= 0:
        head = data[at : at + _FRAME.size]
        if len(head) == _FRAME.size:
            _, size, serial, _, _, _, body_crc, crc = _FRAME.unpack(head)
            seed = ~_unwind(~crc, head[:-4]) & _CRC_MASK
            end = data[at + size - _END.size : at + size]
            fields = _END.pack(_END_MAGIC, size, serial, body_crc, 0)[:-4]
            if end == fields + _NUMBER.pack(crc32(fields, seed)):
                nonce = int.from_bytes((_unwind(~seed, bytes(4)) ^ ~crc32(bytes(4)) & _CRC_MASK).to_bytes(4, "little"))
                generation = serial >> SERIAL_BITS
                return CommitHeader(generation, 0, generation << SERIAL_BITS, nonce, bytes(16), 0, False)
        at = data.find(_FRAME_MAGIC, at + 1)
    return None


def _unwind(register: int, data: bytes) -> int:
    """Return the register of a CRC-32 before ``data``, from the register after it."""
    register &= _CRC_MASK
    for byte in reversed(data):
        index = _CRC_INDEX[register >> 24]
        register = (register ^ _CRC_TABLE[index]) << 8 & _CRC_MASK | index ^ byte
    return register
