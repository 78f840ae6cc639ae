r"""XPUB: a publish with options. nsqx only; a client asks for it with ``"nsqx": true`` in IDENTIFY.

      XPUB <topic>\n [int32 size][uint16 n][n bytes JSON][body of an MPUB]

      body of an MPUB: int32 count, then int32 size and bytes of each message

      key of the JSON   value                 meaning
      producer, seq     string, integer       name and number of the publish: it is stored only once
      sync              boolean               answer when the messages are durable, also with --durability=write
      defer             integer               delay before the messages are delivered, in milliseconds

The answer is JSON: ``{"offset":1204417,"count":200}``, with ``"duplicate":true`` if the publish was stored before. The
offset is missing if it is not known.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final, NamedTuple

import orjson

from nsqx.errors import ProtocolError
from nsqx.gotext import quote
from nsqx.names import is_valid_producer
from nsqx.wire.commands import read_batch

# The answer to IDENTIFY of an nsqd that knows XPUB.
FEATURES: Final = {"xpub": True}
# Numbers of publishes are positive and below this limit.
MAX_SEQ: Final = 1 << 62
# A publish with options is one batch. So it is stored wholly or not at all, and processed in one turn of the loop.
MAX_MESSAGES: Final = 20_000

_OPTIONS_SIZE = Struct(">H")
_KINDS = {"producer": str, "seq": int, "sync": bool, "defer": int}


class XpubRequest(NamedTuple):
    """The body of an XPUB. ``items`` are ``message_count`` messages, each with an int32 size before it."""

    items: bytes
    message_count: int
    producer: str = ""
    seq: int = 0
    is_synced: bool = False
    defer_ms: int = 0


class XpubAnswer(NamedTuple):
    """The answer to an XPUB. ``offset`` is -1 if it is not known."""

    offset: int
    message_count: int
    is_duplicate: bool


def publish_extended_line(topic: str) -> bytes:
    """Return the line of an XPUB; a size and the body follow it."""
    return f"XPUB {topic}\n".encode()


def encode_xpub(options: dict[str, Any], batch: bytes) -> bytes:
    """Return the body of an XPUB. ``batch`` is the body of an MPUB."""
    text = orjson.dumps(options)
    return _OPTIONS_SIZE.pack(len(text)) + text + batch


def decode_xpub(body: bytes, max_body_size: int, max_msg_size: int) -> XpubRequest:
    """Decode the body of an XPUB; raises ProtocolError."""
    if len(body) < _OPTIONS_SIZE.size:
        raise _bad("failed to read the size of the options")
    start = _OPTIONS_SIZE.size
    end = start + _OPTIONS_SIZE.unpack_from(body)[0]
    if end > len(body):
        raise _bad(f"options of {end - start} bytes exceed the body")
    options = _decode_options(body[start:end])
    batch = body[end:]
    try:
        items, count = read_batch(batch, max_body_size, max_msg_size)
    except ProtocolError as error:
        raise _bad(error.description.removeprefix("MPUB ")) from None
    if len(items) + 4 != len(batch):
        raise _bad(f"{len(batch) - len(items) - 4} bytes follow the last message")
    if count > MAX_MESSAGES:
        raise _bad(f"{count} messages, at most {MAX_MESSAGES} are allowed")
    return XpubRequest(
        items,
        count,
        options.get("producer", ""),
        options.get("seq", 0),
        options.get("sync", False),
        options.get("defer", 0),
    )


def _decode_options(text: bytes) -> dict[str, Any]:
    try:
        options = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise _bad("failed to decode JSON options") from None
    if not isinstance(options, dict):
        raise _bad("options are not a JSON object")
    for key, value in options.items():
        kind = _KINDS.get(key)
        if kind is None:
            raise _bad(f"unknown option {quote(key)}, use producer, seq, sync or defer")
        if type(value) is not kind:
            raise _bad(f"option {key} is not {_KIND_NAMES[kind]}")
    if "producer" in options or "seq" in options:
        producer, seq = options.get("producer", ""), options.get("seq", 0)
        if not is_valid_producer(producer):
            raise _bad(f"producer {quote(producer)} is not valid, use 1-64 of a-z A-Z 0-9 . _ -")
        if not 0 < seq < MAX_SEQ:
            raise _bad(f"seq {seq} out of range 1-{MAX_SEQ - 1}")
    return options


_KIND_NAMES = {str: "a string", int: "an integer", bool: "true or false"}


def _bad(text: str) -> ProtocolError:
    return ProtocolError("E_BAD_BODY", f"XPUB {text}")


def encode_xpub_answer(answer: XpubAnswer) -> bytes:
    """Return the answer to an XPUB."""
    fields: dict[str, Any] = {"offset": answer.offset} if answer.offset >= 0 else {}
    fields["count"] = answer.message_count
    if answer.is_duplicate:
        fields["duplicate"] = True
    return orjson.dumps(fields)


def decode_xpub_answer(data: bytes) -> XpubAnswer:
    """Decode the answer to an XPUB; raises ValueError."""
    fields = orjson.loads(data)
    if not isinstance(fields, dict) or type(fields.get("count")) is not int:
        raise ValueError(f"not an answer to XPUB: {data!r}")
    return XpubAnswer(fields.get("offset", -1), fields["count"], fields.get("duplicate") is True)
