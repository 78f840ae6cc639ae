"""The refusals of nsqd's routes for positions and messages, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqx.errors import RequestFailed

TOPIC_NOT_FOUND, CHANNEL_NOT_FOUND = "TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND"

_TEXTS = {
    TOPIC_NOT_FOUND: "the topic does not exist there",
    CHANNEL_NOT_FOUND: "the channel does not exist there",
    "NOT_FOUND": "this nsqd cannot do that: it is an nsqd of Go or an older one of nsqx",
    "NOT_A_LOG": "the topic has the classic store, which has no offsets and no times",
    "OFFSET_GONE": "messages before the offset {first} were removed",
    "OFFSET_BEYOND_END": "the log ends at the offset {end}",
    "CONVERTING": "the topic is being converted to another store: try again when that has ended",
    "READ_FAILED": "the files of the log could not be read: the log of nsqd has the reason",
    "UNAUTHORIZED": "the request needs another token: --nsqd-http-token-file",
}


def refusal_text(failure: RequestFailed) -> str:
    """Return the reason of a failed request."""
    text = _TEXTS.get(failure.code)
    try:
        return failure.plain if text is None else text.format_map(failure.numbers)
    except KeyError:
        return failure.plain
