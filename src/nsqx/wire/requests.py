r"""The commands that clients send to nsqd, as bytes.

      "  V2"                                    once, first
      NAME [words]\n                            a line
      NAME [words]\n [size int32][body]         a line and a body

The commands that are sent for every message (``FIN``, ``PUB``, ``MPUB``) are encoded by ``encode``; their lines are
created here, once per topic.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

MAGIC: Final = b"  V2"
NOP: Final = b"NOP\n"
START_CLOSE: Final = b"CLS\n"


def encode_identify(fields: dict[str, Any]) -> bytes:
    """Encode an IDENTIFY command."""
    return _with_body(b"IDENTIFY\n", orjson.dumps(fields))


def encode_auth(secret: str) -> bytes:
    """Encode an AUTH command."""
    return _with_body(b"AUTH\n", secret.encode())


def encode_subscribe(topic: str, channel: str) -> bytes:
    """Encode a SUB command."""
    return f"SUB {topic} {channel}\n".encode()


def encode_ready(count: int) -> bytes:
    """Encode an RDY command."""
    return b"RDY %d\n" % count


def encode_requeue(message_id: bytes, delay_ms: int) -> bytes:
    """Encode a REQ command."""
    return b"REQ %b %d\n" % (message_id, delay_ms)


def encode_touch(message_id: bytes) -> bytes:
    """Encode a TOUCH command."""
    return b"TOUCH %b\n" % message_id


def publish_line(topic: str) -> bytes:
    """Return the line of a PUB; a size and the body follow it."""
    return f"PUB {topic}\n".encode()


def publish_many_line(topic: str) -> bytes:
    """Return the line of an MPUB; a size and a batch follow it."""
    return f"MPUB {topic}\n".encode()


def publish_deferred_line(topic: str, delay_ms: int) -> bytes:
    """Return the line of a DPUB; a size and the body follow it."""
    return f"DPUB {topic} {delay_ms}\n".encode()


def _with_body(line: bytes, body: bytes) -> bytes:
    return line + len(body).to_bytes(4, "big") + body
