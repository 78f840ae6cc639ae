"""The options of one publish, beyond its topic and messages, and its result. Plain publishes have none.

/pub and /mpub take the options from their query, XPUB from its JSON. ``LogFlow`` stores them with the messages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from nsqx.errors import HTTPError
from nsqx.gotext import parse_duration_ns
from nsqx.names import is_valid_producer
from nsqx.wire.xpub import MAX_SEQ

# Instead of an offset.
NO_OFFSET: Final = -1
_DIGITS = re.compile("[0-9]{1,20}", re.ASCII)


class PublishOptions(NamedTuple):
    """``producer`` and ``seq`` are the name and the number of a publish that must be stored only once, or empty and 0.

    With ``is_synced`` the answer waits until the messages are durable, whatever the durability of the topic is. After
    ``ttl_ns``, if not 0, they are not delivered any more.
    """

    producer: str = ""
    seq: int = 0
    defer_ns: int = 0
    is_synced: bool = False
    ttl_ns: int = 0

    @property
    def log_option(self) -> str:
        """The name of an option that only log topics have; empty if there is none."""
        if self.producer:
            return "producer"
        if self.ttl_ns:
            return "ttl"
        return "sync" if self.is_synced else ""


class PublishOutcome(NamedTuple):
    """``first`` is the offset of the first message, or NO_OFFSET if it is not known.

    If ``is_duplicate``, the messages were stored by an earlier publish, and these are its offset and its count.
    The count is 0 if it is not known.
    """

    first: int
    message_count: int
    is_duplicate: bool = False


def has_options(query: Mapping[str, str]) -> bool:
    """True if the query of /pub or /mpub has an option that ``query_options`` reads."""
    return "producer" in query or "seq" in query or "ttl" in query


def query_options(query: Mapping[str, str], defer_ns: int = 0) -> PublishOptions:
    """Return the options in the query of /pub or /mpub; raises HTTPError."""
    producer = query.get("producer", "")
    text = query.get("seq", "")
    if "producer" in query or "seq" in query:
        if not is_valid_producer(producer):
            raise HTTPError(400, "INVALID_PRODUCER")
        if _DIGITS.fullmatch(text) is None or not 0 < int(text) < MAX_SEQ:
            raise HTTPError(400, "INVALID_SEQ")
    ttl_ns = _parse_ttl(query["ttl"]) if "ttl" in query else 0
    return PublishOptions(producer, int(text or 0), defer_ns, ttl_ns=ttl_ns)


def _parse_ttl(text: str) -> int:
    try:
        ttl_ns = parse_duration_ns(text)
    except ValueError:
        ttl_ns = 0
    if ttl_ns <= 0:
        raise HTTPError(400, "INVALID_TTL")
    return ttl_ns
