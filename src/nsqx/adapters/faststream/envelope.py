"""The envelope of a message: headers and a payload in one body, because NSQ's messages have no headers.

An envelope is a JSON object. ``faststream`` is the version of the format:

    {"faststream": 1, "headers": {"content-type": "text/plain"}, "data": "hello"}

The payload is text in ``data``, or base64 in ``data_base64`` if it is not UTF-8. Any other body is a plain message of
another client.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import orjson

_VERSION = 1
_KEY = b'"faststream"'


def seal(payload: bytes, headers: dict[str, Any]) -> bytes:
    """Return an envelope. Header values that JSON does not have become text."""
    content: dict[str, Any] = {"faststream": _VERSION, "headers": headers}
    try:
        content["data"] = payload.decode()
    except UnicodeDecodeError:
        content["data_base64"] = base64.b64encode(payload).decode()
    return orjson.dumps(content, default=str, option=orjson.OPT_NON_STR_KEYS)


def unseal(body: bytes) -> tuple[bytes, dict[str, Any]]:
    """Return the payload and the headers of a body. A plain message is its own payload and has no headers."""
    content = _content(body)
    headers = content.get("headers", {})
    if content.get("faststream") != _VERSION or not isinstance(headers, dict):
        return body, {}
    if isinstance(text := content.get("data"), str):
        return text.encode(), headers
    if isinstance(text := content.get("data_base64"), str):
        try:
            return base64.b64decode(text, validate=True), headers
        except binascii.Error:
            return body, {}
    return body, {}


def _content(body: bytes) -> dict[str, Any]:
    # A search is much cheaper than parsing every plain JSON message.
    if not body.startswith(b"{") or _KEY not in body:
        return {}
    try:
        content: dict[str, Any] = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return content
