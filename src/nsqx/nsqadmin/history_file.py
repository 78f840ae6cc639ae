"""The long history on disk: it continues after a restart.

    +------------------+  +-----------------------+
    | magic, 16 bytes  |  | record | record | ... |
    +------------------+  +-----------------------+

    record:  u32 size of the payload | u32 CRC-32 of the payload | payload, compressed with zlib

The first record is JSON: the format, the tiers with their times, and the events. Each further record has the tracks of
up to 100 topics and channels of one tier: a line of JSON, then the rings. An empty record is the end. The file is
replaced as a whole, so a crash leaves the one before. A damaged file is set aside, and the history begins empty.
"""

from __future__ import annotations

import asyncio
import base64
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import orjson

from nsqx.nsqadmin.atomic_file import replace_file, set_aside
from nsqx.nsqadmin.history import Track
from nsqx.nsqadmin.long_history import HistoryEvent

if TYPE_CHECKING:
    from nsqx.log import Log
    from nsqx.nsqadmin.long_history import LongHistory, Tier, TrackKey

MAX_FILE_SIZE = 64 * 1024 * 1024
_MAGIC = b"nsqx history 1\r\n"
_HEAD = struct.Struct("<II")
_FORMAT = 1
_PER_RECORD = 100
_MAX_RECORD_SIZE = 64 * 1024 * 1024
_LEVEL = 1


class HistoryFile:
    """Loads the history at the start and saves it on request."""

    def __init__(self, path: str, log: Log) -> None:
        """With an empty path nothing is stored."""
        self._path = path
        self._log = log
        self._has_failed = False
        self._is_cut = False

    async def load(self, history: LongHistory) -> float:
        """Fill the history in a thread; return the time at which it was saved, or 0."""
        if not self._path:
            return 0.0
        async with history.changing:
            try:
                return await asyncio.to_thread(_load, self._path, history)
            except (FileNotFoundError, NotADirectoryError):
                return 0.0
            except OSError as error:
                self._log.warn("cannot read the history in %s: %s", self._path, error.strerror)
            except ValueError as error:
                _forget(history)
                self._log.warn("invalid history %s (%s): renamed to %s", self._path, error, set_aside(self._path))
        return 0.0

    async def save(self, history: LongHistory, now_s: float) -> None:
        """Write the history in a thread; the topics seen last come first if the file would be too large."""
        if not self._path:
            return
        async with history.changing:
            try:
                is_cut = await asyncio.to_thread(_save, self._path, history, now_s)
            except OSError as error:
                if not self._has_failed:
                    reason = error.strerror or str(error)
                    self._log.warn("cannot write the history %s: %s; it is kept in memory", self._path, reason)
                self._has_failed = True
                return
        self._has_failed = False
        if is_cut and not self._is_cut:
            limit = MAX_FILE_SIZE >> 20
            self._log.warn("the history of some topics is kept in memory only: %s has %d MiB", self._path, limit)
        self._is_cut = is_cut


# Writing


def _save(path: str, history: LongHistory, now_s: float) -> bool:
    """Write the file; return True if it lacks some topics because of its size."""
    pieces = _Pieces(history, now_s)
    replace_file(path, pieces)
    return pieces.is_cut


class _Pieces:
    """The content of the file, piece by piece."""

    def __init__(self, history: LongHistory, now_s: float) -> None:
        self._history = history
        self._now_s = now_s
        self.is_cut = False

    def __iter__(self) -> Iterator[bytes]:
        size = 0
        yield _MAGIC
        yield _record(orjson.dumps(_document(self._history, self._now_s)))
        # The coarsest tier first: it is the smallest for its time.
        for index, tier in reversed(list(enumerate(self._history.tiers))):
            latest_first = sorted(tier.tracks.items(), key=lambda item: -item[1].last)
            for first in range(0, len(latest_first), _PER_RECORD):
                record = _record(_tracks(index, latest_first[first : first + _PER_RECORD]))
                size += len(record)
                if size > MAX_FILE_SIZE:
                    self.is_cut = True
                    break
                yield record
        yield _record(b"")


def _document(history: LongHistory, now_s: float) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "saved_s": now_s,
        "topic_series": history.topic_series,
        "channel_series": history.channel_series,
        "tiers": [
            {
                "step_s": tier.step_s,
                "capacity": tier.clock.capacity,
                "number": tier.clock.number,
                "folded": tier.folded,
                "times": base64.b64encode(tier.clock.dump()).decode(),
            }
            for tier in history.tiers
        ],
        "events": [list(each) for each in history.events],
        "started_s": history.started_s,
    }


def _tracks(tier: int, batch: Sequence[tuple[TrackKey, Track]]) -> bytes:
    heads: list[Any] = []
    rings: list[bytes] = []
    for (topic, channel), track in batch:
        head, own = track.dump()
        size = sum(map(len, own))
        heads.append([topic, channel, size, head])
        rings.extend(own)
    return b"".join((orjson.dumps({"tier": tier, "tracks": heads}), b"\n", *rings))


def _record(payload: bytes) -> bytes:
    packed = zlib.compress(payload, _LEVEL) if payload else b""
    return _HEAD.pack(len(packed), zlib.crc32(packed)) + packed


# Reading


def _load(path: str, history: LongHistory) -> float:
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size > 2 * MAX_FILE_SIZE:
            raise ValueError("too large")
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ValueError("not a history")
        records = _records(file)
        try:
            saved_s = _read_document(orjson.loads(next(records, b"")), history)
            kept = _kept_tiers(history)
            for payload in records:
                _read_tracks(payload, history, kept)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"unexpected content: {error!r}") from None
    return saved_s


def _records(file: BinaryIO) -> Iterator[bytes]:
    while True:
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            raise ValueError("it ends too early")
        size, checksum = _HEAD.unpack(head)
        if not size:
            return
        packed = file.read(min(size, MAX_FILE_SIZE))
        if len(packed) != size or zlib.crc32(packed) != checksum:
            raise ValueError(f"wrong checksum before byte {file.tell()}")
        decoder = zlib.decompressobj()
        try:
            payload = decoder.decompress(packed, _MAX_RECORD_SIZE)
        except zlib.error as error:
            raise ValueError(str(error)) from None
        if not decoder.eof:
            raise ValueError("a record is too large")
        yield payload


def _read_document(document: dict[str, Any], history: LongHistory) -> float:
    if document["format"] != _FORMAT:
        raise ValueError(f"format {document['format']}")
    same_series = (tuple(document["topic_series"]), tuple(document["channel_series"])) == (
        history.topic_series,
        history.channel_series,
    )
    for tier, stored in zip(history.tiers, document["tiers"], strict=False):
        # Points of another resolution, or of other series, are not used.
        if same_series and _is_same(tier, stored):
            tier.clock.load(int(stored["number"]), base64.b64decode(stored["times"]))
            tier.folded = int(stored["folded"])
    for index, tier in enumerate(history.tiers):
        # The numbers of polls begin at 0 again.
        tier.folded = -1 if not index else min(tier.folded, history.tiers[index - 1].clock.number)
        if index and tier.clock.number < 0:
            tier.folded = history.tiers[index - 1].clock.number
    history.events.extend(
        HistoryEvent(str(kind), float(time_s), float(until_s), str(node))
        for kind, time_s, until_s, node in document["events"]
    )
    history.started_s.update((str(node), float(start_s)) for node, start_s in document["started_s"].items())
    return float(document["saved_s"])


def _is_same(tier: Tier, stored: dict[str, Any]) -> bool:
    return (tier.step_s, tier.clock.capacity) == (stored["step_s"], stored["capacity"])


def _kept_tiers(history: LongHistory) -> set[int]:
    return {index for index, tier in enumerate(history.tiers) if tier.clock.number >= 0}


def _read_tracks(payload: bytes, history: LongHistory, kept: set[int]) -> None:
    line, _, rings = payload.partition(b"\n")
    document = orjson.loads(line)
    if document["tier"] not in kept:
        return
    tier = history.tiers[document["tier"]]
    place = 0
    for topic, channel, size, head in document["tracks"]:
        key = (str(topic), str(channel))
        track = tier.tracks[key] = Track(tier.clock, len(history.series_of(key)))
        track.load(head, rings[place : place + size])
        place += size
    if place != len(rings):
        raise ValueError("unexpected size of a record")


def _forget(history: LongHistory) -> None:
    """Undo a load that failed."""
    history.events.clear()
    history.started_s.clear()
    for tier in history.tiers:
        tier.tracks.clear()
        tier.folded = -1
        tier.clock.number = -1
