"""The rights in the answer of an auth server. Patterns use RE2, whose run time is linear in the input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
import re2

from nsqx.gotext import quote

_PERMISSIONS = ("subscribe", "publish")
# Patterns come from outside. A pattern that needs more memory than this is refused.
_MAX_PATTERN_MEMORY = 1 << 20


class InvalidGrants(ValueError):
    """An invalid answer of the auth server; the text says why."""


@dataclass(slots=True)
class Grant:
    """One entry of the answer: permissions for the topics and channels that match its patterns."""

    permissions: frozenset[str]
    topic: Any
    channels: list[Any]

    def allows(self, topic_name: str, channel_name: str) -> bool:
        """True if it allows subscribing to the channel or, without a channel, publishing. Patterns match anywhere."""
        needed = "subscribe" if channel_name else "publish"
        return (
            needed in self.permissions
            and self.topic.search(topic_name) is not None
            and any(channel.search(channel_name) is not None for channel in self.channels)
        )


@dataclass(slots=True)
class Grants:
    """All rights of one client, valid for ``ttl_s`` seconds after the answer."""

    ttl_s: int
    identity: str
    identity_url: str
    entries: list[Grant]

    def allow(self, topic_name: str, channel_name: str) -> bool:
        """True if at least one entry allows it."""
        return any(entry.allows(topic_name, channel_name) for entry in self.entries)


def decode_grants(body: bytes) -> Grants:
    """Decode the answer of an auth server; raises InvalidGrants."""
    try:
        answer = orjson.loads(body)
        ttl_s = answer.get("ttl", 0)
        entries = [_grant(entry) for entry in answer.get("authorizations") or []]
        identity, identity_url = answer.get("identity") or "", answer.get("identity_url") or ""
    except InvalidGrants:
        raise
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidGrants(f"not an answer to an auth request: {error}") from None
    if type(ttl_s) is not int or not isinstance(identity, str) or not isinstance(identity_url, str):
        raise InvalidGrants("not an answer to an auth request: a field has the wrong type")
    if ttl_s <= 0:
        raise InvalidGrants(f"invalid TTL {ttl_s} (must be >0)")
    return Grants(ttl_s, identity, identity_url, entries)


def _grant(entry: dict[str, Any]) -> Grant:
    permissions = entry.get("permissions") or []
    for permission in permissions:
        if permission not in _PERMISSIONS:
            text = str(permission)
            raise InvalidGrants(f"unknown permission {text if text.isprintable() else quote(text)}")
    topic = _pattern("topic", entry.get("topic") or "")
    return Grant(frozenset(permissions), topic, [_pattern("channel", text) for text in entry.get("channels") or []])


def _pattern(what: str, text: object) -> Any:
    if not isinstance(text, str):
        raise InvalidGrants(f"not an answer to an auth request: {what} is not text")
    options = re2.Options()
    options.max_mem = _MAX_PATTERN_MEMORY
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except re2.error as error:
        raise InvalidGrants(f"unable to compile {what} {quote(text)} {error}") from None
