"""The log of a topic, in the answer to SUB for clients that have sent ``"nsqx": true`` in IDENTIFY.

      OK                                                              the topic has no log
      OK {"log":"6f1c2a9e40d34b7c","first_id":"0c9f33d0a3c14000"}     the topic has this log

The id of a message is the first id of the log plus the offset of the message, in the layout of ``message``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from nsqx.wire import byteops

_OK = b"OK"
_DIGITS = 16


class LogPlace(NamedTuple):
    """The log of a topic: its id in hexadecimal digits, and the number of the message id at offset 0."""

    log: str
    first_id: int

    def offset(self, message_id: bytes) -> int:
        """Return the offset of a message of this log."""
        return byteops.linear_id(int(message_id, 16)) - byteops.linear_id(self.first_id)


def encode_log_place(place: LogPlace) -> bytes:
    """Return the answer to SUB."""
    return _OK + b" " + orjson.dumps({"log": place.log, "first_id": f"{place.first_id:0{_DIGITS}x}"})


def decode_log_place(answer: bytes) -> LogPlace | None:
    """Decode the answer to SUB; None if the topic has no log. Raises ValueError."""
    if answer == _OK:
        return None
    try:
        fields: Any = orjson.loads(answer.removeprefix(_OK + b" "))
        log, first_id = fields["log"], fields["first_id"]
        if len(log) == _DIGITS == len(first_id):
            return LogPlace(log, int(first_id, 16))
    except (ValueError, TypeError, KeyError):
        pass
    raise ValueError(f"not an answer to SUB: {answer!r}")
