"""Simple, slow parsers that the fast parsers of the package are compared with.

They follow NSQ's protocol and share no code with the package. They take the whole input and return a list of events.
"""

import json
import re
import struct

MAX_LINE_LENGTH = 16384
COMMANDS_WITH_BODY = (b"IDENTIFY", b"AUTH", b"PUB", b"DPUB", b"XPUB")
_FINISH = re.compile(rb"FIN ([0-9a-f]{16})")

Event = tuple[object, ...]


def read_commands(data: bytes, max_body_size: int, max_count: int, max_item_size: int) -> list[Event]:
    """Return the events that a session reads from a client's bytes after the magic, up to the first fatal error."""
    events: list[Event] = []
    place = 0
    while True:
        line, newline, _ = data[place:].partition(b"\n")
        if len(line) >= MAX_LINE_LENGTH:
            return [*events, ("line too long",)]
        if not newline:
            return events
        place += len(line) + 1
        finish = _FINISH.fullmatch(line)
        if finish:
            events.append(("finish", finish[1]))
            continue
        words = (line[:-1] if line.endswith(b"\r") else line).split(b" ")
        events.append(("line", *words))
        if words[0] not in (*COMMANDS_WITH_BODY, b"MPUB"):
            continue
        if len(data) - place < 4:
            return events
        (size,) = struct.unpack_from(">i", data, place)
        events.append(("size", size))
        if not 0 < size <= max_body_size:
            return [*events, ("refused size",)]
        place += 4
        if words[0] == b"MPUB":
            outcome, place = _read_batch(data, place, max_count, max_item_size)
            events += outcome
            if place < 0:
                return events
        elif len(data) - place < size:
            return events
        else:
            events.append(("body", data[place : place + size]))
            place += size


def _read_batch(data: bytes, place: int, max_count: int, max_item_size: int) -> tuple[list[Event], int]:
    """Return the events of a batch and its end; -1 as the end if the batch is incomplete or refused."""
    if len(data) - place < 4:
        return [], -1
    (count,) = struct.unpack_from(">i", data, place)
    if not 0 < count <= max_count:
        return [("refused batch", "E_BAD_BODY")], -1
    place += 4
    bodies = []
    for _ in range(count):
        if len(data) - place < 4:
            return [], -1
        (size,) = struct.unpack_from(">i", data, place)
        if not 0 < size <= max_item_size:
            return [("refused batch", "E_BAD_MESSAGE")], -1
        if len(data) - place < 4 + size:
            return [], -1
        bodies.append(data[place + 4 : place + 4 + size])
        place += 4 + size
    return [("batch", *bodies)], place


def read_frames(data: bytes, max_size: int) -> list[Event]:
    """Return the frames in nsqd's output, up to the first invalid one."""
    events: list[Event] = []
    while len(data) >= 8:
        size, kind = struct.unpack_from(">ii", data)
        if size < 4 or size > max_size:
            return [*events, ("invalid",)]
        if len(data) < 4 + size:
            return events
        body, data = data[8 : 4 + size], data[4 + size :]
        if kind == 2:
            if len(body) < 26:
                return [*events, ("invalid",)]
            timestamp, attempts = struct.unpack_from(">qH", body)
            events.append(("message", timestamp, attempts, body[10:26], body[26:]))
        elif kind == 1:
            events.append(("error", body))
        elif kind == 0:
            events.append(("heartbeat",) if body == b"_heartbeat_" else ("response", body))
        else:
            return [*events, ("invalid",)]
    return events


def read_xpub(body: bytes, max_item_size: int) -> tuple[dict[str, object], list[bytes]] | None:
    """Return the options and the messages of the body of an XPUB; None if it is not valid."""
    size = int.from_bytes(body[:2], "big")
    text, batch = body[2 : 2 + size], body[2 + size :]
    if len(body) < 2 or len(text) < size or len(batch) < 4:
        return None
    try:
        options = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(options, dict) or not _are_options_valid(options):
        return None
    bodies: list[bytes] = []
    place = 4
    while place < len(batch):
        size = int.from_bytes(batch[place : place + 4], "big", signed=True)
        place += 4 + size
        if not 0 < size <= max_item_size or place > len(batch):
            return None
        bodies.append(batch[place - size : place])
    if int.from_bytes(batch[:4], "big", signed=True) != len(bodies) or not 0 < len(bodies) <= 20_000:
        return None
    return options, bodies


def _are_options_valid(options: dict[str, object]) -> bool:
    kinds = {"producer": str, "seq": int, "sync": bool, "defer": int}
    if any(type(value) is not kinds.get(key) for key, value in options.items()):
        return False
    if not {"producer", "seq"} & options.keys():
        return True
    producer, seq = options.get("producer"), options.get("seq")
    is_named = isinstance(producer, str) and re.fullmatch("[a-zA-Z0-9._-]{1,64}", producer) is not None
    return is_named and isinstance(seq, int) and 0 < seq < 1 << 62
