"""Searching the bodies of messages for a text, as a person reads them.

JSON may write any character as an escape: ``\\u674e`` stands for one Chinese character. A search looks at the body both
as it was published and with its escapes decoded. Upper and lower case are the same.
"""

from __future__ import annotations

import re

_ESCAPE = re.compile(r'\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))')
_SHORT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_JSON_STARTS = ("{", "[", '"')


class Search:
    """One text to look for; an empty one is found in every message."""

    __slots__ = ("_folded", "text")

    def __init__(self, text: str = "") -> None:
        self.text = text
        self._folded = text.casefold()

    def finds(self, message_id: str, body: bytes) -> bool:
        """True if the body contains the text, or if the text is the message's id."""
        if not self._folded:
            return True
        published = body.decode("utf-8", "replace")
        if self._folded in published.casefold() or self._folded == message_id:
            return True
        return "\\" in published and self._folded in decoded(published).casefold()


def decoded(text: str) -> str:
    """JSON with the characters that its escapes stand for; any other text as it is."""
    if not text.lstrip().startswith(_JSON_STARTS):
        return text
    plain = _ESCAPE.sub(_character, text)
    # Characters beyond 16 bits are written as two escapes.
    return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _character(escape: re.Match[str]) -> str:
    digits, letter = escape.groups()
    return chr(int(digits, 16)) if digits else _SHORT.get(letter, letter)
