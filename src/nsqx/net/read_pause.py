"""Whether a socket is read: it is paused while there is at least one reason not to read it.

A reason is one bit. Each kind of connection names its own.
"""

from __future__ import annotations

from typing import Any


class ReadPause:
    """The reasons for not reading a socket. No other code pauses or resumes its transport."""

    __slots__ = ("_transport", "reasons")

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.reasons = 0

    def add(self, reason: int) -> None:
        """Add one or more reasons; the first one stops reading."""
        if not self.reasons and not self._transport.is_closing():
            self._transport.pause_reading()
        self.reasons |= reason

    def remove(self, reason: int) -> None:
        """Remove one or more reasons; without the last one the socket is read again."""
        if self.reasons & reason:
            self.reasons &= ~reason
            if not self.reasons and not self._transport.is_closing():
                self._transport.resume_reading()
