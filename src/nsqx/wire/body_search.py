"""Search message bodies for a text.

JSON can write any character as an escape: ``\\u674e`` is a Chinese character. The search examines the published body
and the body with its escapes decoded, so that it finds the text as a person reads it. It ignores case.
"""

from __future__ import annotations

import re

_ESCAPE = re.compile(r'\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))')
_SHORT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_JSON_STARTS = ("{", "[", '"')


class BodySearch:
    """The text to search for; every body contains an empty text."""

    __slots__ = ("_folded",)

    def __init__(self, text: str) -> None:
        self._folded = text.casefold()

    def finds(self, body: bytes) -> bool:
        """True if the body contains the text."""
        if not self._folded:
            return True
        published = body.decode("utf-8", "replace")
        if self._folded in published.casefold():
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
