"""A request to nsqadmin and the constructors of its responses.

Owns the headers of each kind of response. Does not know the routes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
from starlette.responses import Response

from nsqx.errors import HTTPError
from nsqx.gotext import quote
from nsqx.net.responses import JSON, TEXT
from nsqx.wire.gojson import InvalidJSON, decode_fields
from nsqx.wire.http_headers import NSQ_HEADERS

if TYPE_CHECKING:
    from starlette.requests import Request

    from nsqx.net.http_head import Head
    from nsqx.nsqadmin.access import Caller

MAX_BODY_SIZE = 2 * 1024 * 1024

_MAX_DIGITS = 18
_DECODER = json.JSONDecoder()
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2}).{0,2}")


@dataclass(slots=True)
class RequestContext:
    """One request and its author."""

    request: Request
    head: Head
    caller: Caller

    @property
    def params(self) -> Mapping[str, str]:
        """The values of the route's ``:name`` parts."""
        return self.head.params

    @property
    def query(self) -> Mapping[str, str]:
        """The first value of each query parameter; raises HTTPError 400 INVALID_REQUEST if the query is malformed."""
        return self.head.query()

    async def body(self, limit: int = MAX_BODY_SIZE, code: str = "BODY_TOO_BIG") -> bytes:
        """Read the whole body; raise HTTPError 413 with ``code`` if it exceeds the limit."""
        pieces: list[bytes] = []
        size = 0
        async for piece in self.request.stream():
            size += len(piece)
            if size > limit:
                raise HTTPError(413, code)
            pieces.append(piece)
        return b"".join(pieces)

    async def fields(self, kinds: Mapping[str, type]) -> dict[str, Any]:
        """Read the JSON object in the body as Go decodes it; raise HTTPError 400 with Go's message if it is invalid."""
        return read_fields(await self.body(), kinds)

    async def json_object(self) -> dict[str, Any]:
        """Read the JSON object in the body; raise HTTPError 400 INVALID_BODY if there is none."""
        try:
            value = orjson.loads(await self.body())
        except orjson.JSONDecodeError:
            raise HTTPError(400, "INVALID_BODY") from None
        if not isinstance(value, dict):
            raise HTTPError(400, "INVALID_BODY")
        return value

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """Return an integer of the query; raise HTTPError 400 INVALID_ARG_<NAME> if it is out of range."""
        text = self.query.get(name, "")
        if not text:
            return default
        if not (text.isascii() and text.isdigit()) or len(text) > _MAX_DIGITS or not least <= int(text) <= most:
            raise HTTPError(400, f"INVALID_ARG_{name.upper()}")
        return int(text)


Handler = Callable[[RequestContext], Awaitable[Response]]


def read_fields(body: bytes, kinds: Mapping[str, type]) -> dict[str, Any]:
    """Return the first JSON object in ``body`` and ignore the rest; raise HTTPError 400 if there is none."""
    text = body.decode("utf-8", "replace").lstrip(" \t\r\n")
    if not text:
        raise HTTPError(400, "EOF")
    try:
        value, end = _DECODER.raw_decode(text)
        return decode_fields(text[:end].encode(), kinds)
    except InvalidJSON:
        raise HTTPError(400, _type_fault(value, kinds)) from None
    except (ValueError, RecursionError) as error:
        raise HTTPError(400, _syntax_fault(text, error)) from None


def _type_fault(value: Any, kinds: Mapping[str, type]) -> str:
    if not isinstance(value, dict):
        return f"json: cannot unmarshal {_json_kind(value)} into an object"
    for key, field in value.items():
        kind = kinds.get(key.casefold())
        if kind is not None and field is not None and type(field) is not kind:
            wanted = {str: "string", int: "int", bool: "bool"}[kind]
            return f"json: cannot unmarshal {_json_kind(field)} into Go struct field .{key} of type {wanted}"
    return "json: cannot unmarshal the body"


def _json_kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def _syntax_fault(text: str, error: Exception) -> str:
    position = error.pos if isinstance(error, json.JSONDecodeError) else 0
    if position >= len(text.rstrip()) or (isinstance(error, json.JSONDecodeError) and "Unterminated" in error.msg):
        return "unexpected EOF"
    return f"invalid character '{text[position]}' looking for beginning of value"


def query_fault(raw_query: bytes) -> str:
    """Return Go's error message for a malformed query."""
    text = raw_query.decode("latin-1")
    for pair in text.split("&"):
        if ";" in pair:
            return "invalid semicolon separator in query"
        bad = _BAD_ESCAPE.search(pair)
        if bad is not None:
            return f"invalid URL escape {quote(bad.group())}"
    return "INVALID_REQUEST"


def json_bytes_response(body: bytes, status: int = 200) -> Response:
    """Respond with encoded JSON."""
    return Response(body, status, headers=dict(NSQ_HEADERS), media_type=JSON)


def json_response(value: object, status: int = 200) -> Response:
    """Respond with ``value`` as JSON."""
    return json_bytes_response(orjson.dumps(value), status)


def text_response(text: str) -> Response:
    """Respond with text and NSQ's header; without a Content-Type if empty, as in Go."""
    return Response(text, headers=dict(NSQ_HEADERS), media_type=TEXT if text else None)


def plain_response(text: str, status: int = 200) -> Response:
    """Respond with text, without NSQ's header."""
    return Response(text, status, media_type=TEXT)
