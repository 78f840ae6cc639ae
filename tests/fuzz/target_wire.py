"""Parsers of the TCP protocols: commands, frames, answers of nsqlookupd, IDENTIFY.

Each check takes any bytes. The fast parser must give the events of the reference parser, in all divisions into pieces,
and raise only the errors that it documents.
"""

import json
import struct
from typing import Any

import orjson
import reference_parsers as reference
from mutation import assert_one_line, in_pieces

from nsqx.errors import InvalidFrame, ProtocolError
from nsqx.wire import byteops, commands, lookup, responses
from nsqx.wire.gojson import InvalidJSON
from nsqx.wire.identify import IdentifyRequest, decode_identify
from nsqx.wire.xpub import XpubRequest, decode_xpub

MAX_BODY_SIZE, MAX_COUNT, MAX_ITEM_SIZE = 3000, 40, 500
MAX_FRAME_SIZE = 4000
INT64 = range(-(1 << 63), 1 << 63)


def check_commands(data: bytes) -> None:
    """Check nsqd's parser of commands, called as a session calls it."""
    expected = reference.read_commands(data, MAX_BODY_SIZE, MAX_COUNT, MAX_ITEM_SIZE)
    assert _commands([data]) == expected
    assert _commands(in_pieces(data)) == expected


def _commands(pieces: list[bytes]) -> list[reference.Event]:
    reader = commands.CommandReader()
    events: list[reference.Event] = []
    words = [b""]
    repeated = [b""]
    try:
        for piece in pieces:
            reader.feed(piece)
            while (event := reader.next()) != commands.NEED_DATA:
                if event == commands.PUBLISH:
                    size = int.from_bytes(reader.item[:4], "big")
                    events += [("line", *repeated), ("size", size), ("body", reader.item[4:])]
                    continue
                if event == commands.LINE:
                    words = reader.words
                    if words[0] in (*reference.COMMANDS_WITH_BODY, b"MPUB"):
                        reader.expect_body()
                events.append(_command_event(reader, event, words[0]))
                if event == commands.SIZE and not _accept(reader, words[0]):
                    return [*events, ("refused size",)]
                if event == commands.BODY and words[0] == b"PUB":
                    repeated = words
                    reader.remember(b" ".join(words) + b"\n", MAX_BODY_SIZE)
    except commands.LineTooLong:
        events.append(("line too long",))
    except ProtocolError as error:
        events.append(("refused batch", error.code))
    assert isinstance(reader.missing(), str)
    return events


def check_xpub(data: bytes) -> None:
    """Check the decoder of the body of an XPUB."""
    expected = reference.read_xpub(data, MAX_ITEM_SIZE)
    try:
        request = decode_xpub(data, len(data) + 4, MAX_ITEM_SIZE)
    except ProtocolError as caught:
        error: ProtocolError | None = caught
    else:
        error = None
    if error is not None:
        assert error.code == "E_BAD_BODY"
        assert_one_line(str(error))
        # The strict decoder of the package refuses JSON that Python's takes.
        assert expected is None or "JSON" in error.description, (error, expected)
        return
    assert expected is not None
    options, bodies = expected
    items = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    assert request == XpubRequest(
        items, len(bodies), options.get("producer", ""), options.get("seq", 0), options.get("sync", False),
        options.get("defer", 0),
    )  # fmt: skip


def _accept(reader: commands.CommandReader, name: bytes) -> bool:
    if not 0 < reader.size <= MAX_BODY_SIZE:
        return False
    if name == b"MPUB":
        reader.accept_batch(MAX_COUNT, MAX_ITEM_SIZE)
    else:
        reader.accept_body()
    return True


def _command_event(reader: commands.CommandReader, event: int, name: bytes) -> reference.Event:
    if event == commands.FINISH:
        return "finish", byteops.id_text(reader.id_number)
    if event == commands.LINE:
        return "line", *reader.words
    if event == commands.SIZE:
        return "size", reader.size
    if event == commands.BODY:
        return "body", reader.take_item()[4:] if name == b"PUB" else reader.take_body()
    count, items = reader.count, reader.take_batch()
    bodies = []
    while items:
        size = int.from_bytes(items[:4], "big")
        bodies.append(items[4 : 4 + size])
        items = items[4 + size :]
    assert len(bodies) == count
    return "batch", *bodies


def check_frames(data: bytes) -> None:
    """Check the client's parser of frames."""
    expected = reference.read_frames(data, MAX_FRAME_SIZE)
    assert _frames([data]) == expected
    assert _frames(in_pieces(data)) == expected


def _frames(pieces: list[bytes]) -> list[reference.Event]:
    reader = responses.FrameReader(MAX_FRAME_SIZE)
    events: list[reference.Event] = []
    try:
        for piece in pieces:
            reader.feed(piece)
            while (event := reader.next()) != responses.NEED_DATA:
                events += _frame_events(reader, event)
    except InvalidFrame as error:
        assert_one_line(error)
        events.append(("invalid",))
    return events


def _frame_events(reader: responses.FrameReader, event: int) -> list[reference.Event]:
    if event == responses.OK_RUN:
        return [("response", b"OK")] * reader.count
    if event == responses.MESSAGE:
        parts = reader.message_timestamp(), reader.message_attempts(), reader.message_id(), reader.message_body()
        return [("message", *parts)]
    if event == responses.HEARTBEAT:
        return [("heartbeat",)]
    return [("error" if event == responses.ERROR else "response", reader.data)]


def check_introduction(data: bytes) -> None:
    """Check the JSON with which nsqlookupd introduces itself."""
    try:
        orjson.dumps(lookup.decode_introduction(data))
    except InvalidJSON:
        pass


def check_identify(data: bytes) -> None:
    """Check the JSON of IDENTIFY: it is accepted only if it is valid JSON, and its values can be encoded again."""
    try:
        request = decode_identify(data)
    except InvalidJSON as refusal:
        assert_one_line(refusal)
        return
    json.loads(data.decode("utf-8", "replace"))
    fields: dict[str, Any] = {name: getattr(request, name) for name in IdentifyRequest.__dataclass_fields__}
    for value in fields.values():
        assert not isinstance(value, int) or value in INT64
    assert decode_identify(orjson.dumps(fields)) == request
