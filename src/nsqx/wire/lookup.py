r"""The protocol between nsqd and nsqlookupd: the bytes of both sides, without sockets.

nsqd sends the magic, then commands. Each command gets one answer, in order. Unlike nsqd's own frames, an answer has no
type. An error is an answer that starts with ``E_``, and the connection is closed after it.

      "  V1"
      IDENTIFY\n [size int32][JSON]      answered by JSON
      REGISTER <topic> [<channel>]\n     answered by OK
      UNREGISTER <topic> [<channel>]\n   answered by OK
      PING\n                             answered by OK

      0            4
      +------------+------ ... ------+
      | size int32 | data            |   an answer; size counts the data
      +------------+------ ... ------+
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Final

import orjson

from nsqx.errors import ProtocolError
from nsqx.wire.gojson import decode_fields

MAGIC: Final = b"  V1"
PING: Final = b"PING\n"
OK: Final = b"OK"

MAX_LINE_LENGTH: Final = 16384  # including the newline; Go's nsqlookupd has no limit
MAX_IDENTIFY_SIZE: Final = 1024 * 1024  # Go's nsqlookupd has no limit
MAX_ANSWER_SIZE: Final = 1024 * 1024

# The characters that Go's strings.TrimSpace removes.
_SPACES: Final = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


@dataclass(frozen=True, slots=True)
class Announcement:
    """nsqd's description of itself in IDENTIFY. ``remote_address`` is ignored, as in Go nsqlookupd."""

    broadcast_address: str = ""
    tcp_port: int = 0
    http_port: int = 0
    version: str = ""
    hostname: str = ""
    topology_zone: str = ""
    topology_region: str = ""

    @property
    def is_complete(self) -> bool:
        """True if it has everything that consumers need."""
        return bool(self.broadcast_address and self.tcp_port and self.http_port and self.version)


@dataclass(frozen=True, slots=True)
class Introduction:
    """nsqlookupd's description of itself in the answer to IDENTIFY."""

    broadcast_address: str = ""
    hostname: str = ""
    http_port: int = 0
    tcp_port: int = 0
    version: str = ""


_ANNOUNCEMENT_KINDS = {field.name: type(field.default) for field in fields(Announcement)}
_INTRODUCTION_KINDS = {field.name: type(field.default) for field in fields(Introduction)}


def decode_announcement(body: bytes) -> Announcement:
    """Decode the body of an IDENTIFY; raises InvalidJSON."""
    found = decode_fields(body, _ANNOUNCEMENT_KINDS | {"remote_address": str})
    found.pop("remote_address", None)
    return Announcement(**found)


def decode_introduction(answer: bytes) -> Introduction:
    """Decode the answer to an IDENTIFY; raises InvalidJSON."""
    return Introduction(**decode_fields(answer, _INTRODUCTION_KINDS))


def encode_introduction(introduction: Introduction) -> bytes:
    """Encode the answer to an IDENTIFY, with sorted keys."""
    return orjson.dumps(asdict(introduction))


def encode_identify(announcement: Announcement) -> bytes:
    """Encode an IDENTIFY command."""
    return b"IDENTIFY\n" + encode_answer(orjson.dumps(asdict(announcement)))


def encode_register(topic_name: str, channel_name: str = "") -> bytes:
    """Encode a REGISTER command for a topic or one of its channels."""
    return _encode_command("REGISTER", topic_name, channel_name)


def encode_unregister(topic_name: str, channel_name: str = "") -> bytes:
    """Encode an UNREGISTER command for a topic or one of its channels."""
    return _encode_command("UNREGISTER", topic_name, channel_name)


def _encode_command(name: str, topic_name: str, channel_name: str) -> bytes:
    return " ".join(filter(None, (name, topic_name, channel_name))).encode() + b"\n"


def encode_answer(data: bytes) -> bytes:
    """Encode one answer, ready for the socket."""
    return len(data).to_bytes(4, "big") + data


def is_refusal(answer: bytes) -> bool:
    """True if an answer is an error, after which nsqlookupd closes the connection."""
    return answer.startswith(b"E_")


class LookupCommandReader:
    """nsqlookupd's side: reads lines, sizes and bodies from the bytes of a connection.

    Every method returns None while the requested part is incomplete.
    """

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Add bytes from the socket."""
        self._buffer += data

    def line(self) -> str | None:
        """Read a command line, without surrounding whitespace; invalid UTF-8 becomes surrogate escapes."""
        newline = self._buffer.find(b"\n", 0, MAX_LINE_LENGTH)
        if newline < 0:
            if len(self._buffer) >= MAX_LINE_LENGTH:
                raise ProtocolError("E_INVALID", f"command line too long > {MAX_LINE_LENGTH}")
            return None
        return self._take(newline + 1).decode("utf-8", "surrogateescape").strip(_SPACES)

    def size(self) -> int | None:
        """Read a big-endian int32, which can be negative."""
        return int.from_bytes(self._take(4), "big", signed=True) if len(self._buffer) >= 4 else None

    def body(self, size: int) -> bytes | None:
        """Read the next ``size`` bytes."""
        return self._take(size) if len(self._buffer) >= size else None

    def _take(self, size: int) -> bytes:
        piece = bytes(self._buffer[:size])
        del self._buffer[:size]
        return piece
