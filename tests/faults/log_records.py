"""The messages that clients of nsqd know, over all its lives, and the rules for the messages in its topic logs."""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from log_contents import NO_LOG, LogContents

from rawclient import Message

NEVER_S = float("inf")


class Wrong(AssertionError):
    """A rule is broken."""


@dataclass(eq=False)
class Published:
    """A message that was published."""

    key: bytes
    topic: str
    is_deferred: bool
    sent_s: float
    acked_s: float = NEVER_S


def key_of(body: bytes) -> bytes:
    """Return the part of a body that identifies the message; raises Wrong if the body has changed."""
    key = body.rstrip(b".")
    if not body or body != key.ljust(int(key.rpartition(b".")[2]), b"."):
        raise Wrong(f"a wrong body: {body[:60]!r}")
    return key


@dataclass(eq=False)
class ChannelRecord:
    """The messages that a channel may have, and those it must have."""

    topic: str
    name: str
    is_first: bool = False  # of its topic, so it gets all messages
    asked_s: float = NEVER_S
    created_s: float = NEVER_S
    maybe_finished: set[bytes] = field(default_factory=set)
    finished: set[bytes] = field(default_factory=set)
    # Older messages may be discarded; those acknowledged before the second one are.
    maybe_emptied_s: float = 0.0
    emptied_s: float = 0.0

    def must_have(self, one: Published) -> bool:
        """True if the message must be there."""
        is_entitled = self.is_first or one.sent_s > self.created_s
        is_kept = one.sent_s > self.maybe_emptied_s and one.key not in self.maybe_finished
        return one.acked_s < NEVER_S and is_entitled and is_kept

    def may_have(self, one: Published) -> bool:
        """True if the message may be there."""
        since_s = max(self.emptied_s, 0.0 if self.is_first else self.asked_s)
        return one.key not in self.finished and (one.acked_s >= since_s or one.is_deferred)


class Records:
    """Everything that the clients know, over all lives of a round."""

    def __init__(self, topics: Iterable[str], counts: Counter[str]) -> None:
        self._topics = list(topics)
        self.published: dict[bytes, Published] = {}
        self.channels: dict[tuple[str, str], ChannelRecord] = {}
        self.counts = counts
        self.failures: list[BaseException] = []
        self._keys: dict[tuple[int, int], bytes] = {}  # by log and offset
        self._keys_by_id: dict[bytes, tuple[str, bytes]] = {}
        self._segments: set[tuple[str, int]] = set()

    def channel(self, topic: str, name: str, *, is_first: bool = False) -> ChannelRecord:
        """Return the record of a channel."""
        return self.channels.setdefault((topic, name), ChannelRecord(topic, name, is_first))

    def publish(self, topic: str, bodies: Iterable[bytes], *, is_deferred: bool = False) -> list[Published]:
        """Note messages that are about to be sent."""
        now_s = time.monotonic()
        new = [Published(key_of(body), topic, is_deferred, now_s) for body in bodies]
        self.published.update((one.key, one) for one in new)
        self.counts["published"] += len(new)
        return new

    def acknowledge(self, published: Iterable[Published]) -> None:
        """Note that messages are acknowledged."""
        now_s = time.monotonic()
        for one in published:
            one.acked_s = now_s
            self.counts["acknowledged"] += 1

    def received(self, topic: str, message: Message) -> bytes:
        """Check a message that a consumer has received, and return its key."""
        self.counts["deliveries"] += 1
        key = key_of(message.body)
        if self._keys_by_id.setdefault(message.id, (topic, key)) != (topic, key):
            raise Wrong(f"the id {message.id!r} names {key!r} and {self._keys_by_id[message.id]}")
        if key not in self.published:
            raise Wrong(f"{key!r} was not in the files, and was not published since")
        return key

    # Rules

    def check(self, logs: dict[str, LogContents]) -> None:
        """Check the messages in the files against the rules; raises Wrong."""
        left: set[bytes] = set()
        for topic, contents in logs.items():
            self._check_offsets(topic, contents)
        for topic in self._topics:
            contents = logs.get(topic, NO_LOG)
            channels = [channel for channel in self.channels.values() if channel.topic == topic]
            if not contents.channels:
                channels.append(ChannelRecord(topic, "", is_first=True))
            for channel in channels:
                if channel.name and channel.name not in contents.channels:
                    self._check_missing(channel)
                    continue
                found = set(map(key_of, contents.unfinished(channel.name)))
                self._compare(channel, found)
                left |= found
        # Messages that are not in the files any more cannot come back.
        self.published = {key: one for key, one in self.published.items() if key in left}
        for channel in self.channels.values():
            channel.maybe_finished &= left
            channel.finished &= left
            channel.maybe_emptied_s = min(channel.maybe_emptied_s, time.monotonic())

    def _check_offsets(self, topic: str, contents: LogContents) -> None:
        for offset, body in contents.messages.items():
            key = key_of(body)
            if self._keys.setdefault((contents.log_id, offset), key) != key:
                raise Wrong(f"{topic}: the offset {offset} names {key!r} and {self._keys[contents.log_id, offset]!r}")
        new = {(topic, first) for first in contents.segments} - self._segments
        self._segments |= new
        self.counts["segments"] += len(new)

    def _check_missing(self, channel: ChannelRecord) -> None:
        """Check that a channel need not exist, because its creation was not answered."""
        if channel.created_s < NEVER_S:
            raise Wrong(f"the channel {channel.topic}:{channel.name} is lost")

    def _compare(self, channel: ChannelRecord, found: set[bytes]) -> None:
        published = [one for one in self.published.values() if one.topic == channel.topic]
        lost = [one.key for one in published if channel.must_have(one) and one.key not in found]
        excess = found.difference(one.key for one in published if channel.may_have(one))
        name = f"{channel.topic}:{channel.name}"
        if lost:
            raise Wrong(f"{name}: {len(lost)} acknowledged messages are lost: {sorted(lost)[:5]}")
        if excess:
            raise Wrong(f"{name}: {len(excess)} messages must not be there: {sorted(excess)[:5]}")
