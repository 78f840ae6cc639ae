r"""How nsqx sub prints a message: plainly, as JSON, or by a template.

A template has fields in braces: {topic} {id} {time} {timestamp} {attempts} {nsqd} {size} {body} {base64}, and {.path}
for a field of a JSON body. ``\n`` and ``\t`` are a newline and a tab, ``{{`` and ``}}`` braces.
"""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson

from nsqx.cli.did_you_mean import did_you_mean
from nsqx.cli.message_filter import field_text
from nsqx.errors import ConfigError
from nsqx.tools.message_text import time_text

if TYPE_CHECKING:
    from nsqx.client.subscription import Message

Show = Callable[[str, "Message"], bytes]
Part = Callable[[str, "Message"], bytes]

_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|\\(.)|([^{}\\]+)|(.)", re.DOTALL)
_ESCAPES = {"n": b"\n", "t": b"\t", "\\": b"\\"}


def safe_text(body: bytes) -> bytes:
    """Return a body for a terminal: bytes that are not UTF-8 and control characters are escaped, lines are kept."""
    text = body.decode(errors="backslashreplace")
    if text.isprintable():
        return text.encode()
    kept = "\n\t"
    return "".join(
        each if each.isprintable() or each in kept else each.encode("unicode_escape").decode() for each in text
    ).encode()


def _body(message: Message) -> bytes:
    return safe_text(message.body) if sys.stdout.isatty() else message.body


def show_plainly(_topic: str, message: Message) -> bytes:
    """Return the body and a newline: the bytes in a pipe, with escapes on a terminal."""
    return _body(message) + b"\n"


def show_base64(_topic: str, message: Message) -> bytes:
    """Return the body in base64 and a newline."""
    return base64.b64encode(message.body) + b"\n"


def json_shower(*, is_base64: bool) -> Show:
    """Return the function that shows a message as a JSON object: with ``body``, or ``base64`` if it is not UTF-8."""

    def show(topic: str, message: Message) -> bytes:
        known: dict[str, Any] = {
            "topic": topic,
            "id": message.id.decode("ascii", "replace"),
            "timestamp": message.timestamp,
            "attempts": message.attempts,
            "nsqd": message.nsqd_address,
        }
        text = None if is_base64 else _utf8(message.body)
        body = {"base64": base64.b64encode(message.body).decode()} if text is None else {"body": text}
        return orjson.dumps({**known, **body}, option=orjson.OPT_APPEND_NEWLINE)

    return show


def _utf8(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


_FIELDS: dict[str, Part] = {
    "topic": lambda topic, _message: topic.encode(),
    "id": lambda _topic, message: message.id,
    "time": lambda _topic, message: time_text(message.timestamp).encode(),
    "timestamp": lambda _topic, message: str(message.timestamp).encode(),
    "attempts": lambda _topic, message: str(message.attempts).encode(),
    "nsqd": lambda _topic, message: message.nsqd_address.encode(),
    "size": lambda _topic, message: str(len(message.body)).encode(),
    "body": lambda _topic, message: _body(message),
    "base64": lambda _topic, message: base64.b64encode(message.body),
}


def parse_format(template: str) -> Show:
    """Return the function that shows a message by a template, and a newline; raises ConfigError."""
    parts: list[Part] = []
    for found in _TOKEN.finditer(template):
        field, escape, text, other = found.groups()
        if field is not None:
            parts.append(_field(field, template))
        elif escape is not None:
            if escape not in _ESCAPES:
                raise ConfigError(f'invalid --format "{template}": use \\n, \\t or \\\\ after a backslash')
            parts.append(_constant(_ESCAPES[escape]))
        elif other is not None:
            raise ConfigError(f'invalid --format "{template}": write {{{{ for a brace')
        else:
            parts.append(_constant((text or found[0][0]).encode()))

    def show(topic: str, message: Message) -> bytes:
        return b"".join([part(topic, message) for part in parts]) + b"\n"

    return show


def _constant(data: bytes) -> Part:
    return lambda _topic, _message: data


def _field(name: str, template: str) -> Part:
    if name.startswith(".") and all(name[1:].split(".")):
        return lambda _topic, message: safe_text(field_text(message.body, name).encode())
    if name not in _FIELDS:
        hint = did_you_mean(name, _FIELDS) or f"; use {', '.join(_FIELDS)} or .path"
        raise ConfigError(f'invalid --format "{template}": unknown field {{{name}}}{hint}')
    return _FIELDS[name]
