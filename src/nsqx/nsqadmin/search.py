"""Search message bodies for a text.

JSON can write any character as an escape: ``\\u674e`` is a Chinese character. The search examines the published body
and the body with its escapes decoded, so that it finds the text as a person reads it. It ignores case.
"""

from __future__ import annotations

import re

_ESCAPE = re.compile(r'\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))')
_SHORT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_JSON_STARTS = ("{", "[", '"')


class Search:
    """The text to search for; an empty text matches every message."""

    __slots__ = ("_folded", "text")

    def __init__(self, text: str = "") -> None:
        self.text = text
        self._folded = text.casefold()

    def finds(self, message_id: str, body: bytes) -> bool:
        """True if the body contains the text, or if the text is the message's ID."""
        if not self._folded:
            return True
        published = body.decode("utf-8", "replace")
        if self._folded in published.casefold() or self._folded == message_id:
            return True
        return "\\" in published and self._folded in decoded(published).casefold()


def decoded(text: str) -> str:
    """Decode the escapes of JSON; return any other text unchanged."""
    if not text.lstrip().startswith(_JSON_STARTS):
        return text
    plain = _ESCAPE.sub(_character, text)
    # Characters beyond 16 bits are written as two escapes (a surrogate pair).
    return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _character(escape: re.Match[str]) -> str:
    digits, letter = escape.groups()
    return chr(int(digits, 16)) if digits else _SHORT.get(letter, letter)
