"""Search messages for a text in their bodies, or for their ID."""

from __future__ import annotations

from nsqx.wire.body_search import BodySearch


class Search:
    """The text or ID to search for; an empty text matches every message."""

    __slots__ = ("_bodies", "_id")

    def __init__(self, text: str = "") -> None:
        self._bodies = BodySearch(text)
        self._id = text.casefold()

    def finds(self, message_id: str, body: bytes) -> bool:
        """True if the body contains the text, or if the text is the message's ID."""
        return self._id == message_id or self._bodies.finds(body)
