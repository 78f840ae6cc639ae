"""Effects: requests of a session to its connection, as values. The connection carries them out.

A session stops at an effect and continues when ``resolve`` gives it the outcome. Sending is not in this list: frames
are appended to the output buffer of the client, because that is done for every command.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsqx.errors import NSQError

if TYPE_CHECKING:
    from nsqx.nsqd.topic import Topic


@dataclass(frozen=True, slots=True)
class Upgrade:
    """Wrap the socket in these layers, after the answer that announces them has been sent."""

    tls: bool
    snappy: bool
    deflate: bool
    deflate_level: int


@dataclass(frozen=True, slots=True)
class Authenticate:
    """Authenticate the client with the secret. The outcome is the answer to AUTH, or the error."""

    secret: bytes


@dataclass(frozen=True, slots=True)
class RenewRights:
    """Renew the rights of the client, which have expired. The outcome is None, or the error."""


@dataclass(frozen=True, slots=True)
class WatchRights:
    """Watch the right of a new subscriber. ``ClientSession.revoke`` is called if the client loses it."""

    topic_name: str
    channel_name: str


@dataclass(frozen=True, slots=True)
class PublishInSlices:
    """Publish a batch that is too large for one turn. The outcome is None, or the error."""

    topic: Topic
    items: bytes


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection after the output has been sent. There is no outcome."""


Effect = Upgrade | Authenticate | RenewRights | WatchRights | PublishInSlices | Close
# A response to send, an error, or None.
Outcome = bytes | NSQError | None
