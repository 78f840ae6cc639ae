"""Codecs for producers and consumers: how values become the bodies of messages, and back."""

from nsqx.client.codecs import (
    BYTES,
    JSON,
    TEXT,
    BytesCodec,
    Codec,
    JSONCodec,
    MsgspecCodec,
    PydanticCodec,
    TextCodec,
    codec_of,
)

__all__ = [
    "BYTES",
    "JSON",
    "TEXT",
    "BytesCodec",
    "Codec",
    "JSONCodec",
    "MsgspecCodec",
    "PydanticCodec",
    "TextCodec",
    "codec_of",
]
