"""Accounts of a soak test: for each message whether it was sent and acknowledged, and its deliveries by channel.

The body of a message identifies it and has a checksum:

      0       1        2            6             10
      +-------+--------+------------+-------------+------ ... ------+
      | topic | origin | number     | CRC-32      | anything        |
      +-------+--------+------------+-------------+------ ... ------+

``origin`` is the process that published it. Accounts of several processes are merged at the end.
"""

import random
import struct
import zlib
from collections import defaultdict
from dataclasses import dataclass

HEAD = struct.Struct(">BBI")
MIN_SIZE = HEAD.size + 4
UNKNOWN, ACKED, ACKED_DEFERRED = 0, 1, 2
_MOST = 255
_NOISE = random.Random(1).randbytes(1 << 21)

# Share of the messages, smallest size, largest size.
SIZES = (
    (0.600, 10, 200),
    (0.300, 200, 4096),
    (0.090, 4096, 65536),
    (0.009, 65536, 262144),
    (0.001, 262144, 1048576),
)


def pick_size(pick: random.Random) -> int:
    """Return a random size between 10 bytes and 1 MiB, mostly small."""
    _, least, most = pick.choices(SIZES, [share for share, _, _ in SIZES])[0]
    return pick.randint(least, most)


def write_body(topic: int, origin: int, number: int, size: int) -> bytes:
    """Return the body of a message."""
    head = HEAD.pack(topic, origin, number)
    start = number % (len(_NOISE) // 2)
    filling = _NOISE[start : start + size - MIN_SIZE]
    return head + zlib.crc32(filling, zlib.crc32(head)).to_bytes(4, "big") + filling


def read_body(body: bytes) -> tuple[int, int, int] | None:
    """Return topic, origin and number of a message, or None if its body was changed."""
    if len(body) < MIN_SIZE:
        return None
    whole = zlib.crc32(memoryview(body)[MIN_SIZE:], zlib.crc32(memoryview(body)[: HEAD.size]))
    if whole != int.from_bytes(body[HEAD.size : MIN_SIZE], "big"):
        return None
    topic, origin, number = HEAD.unpack_from(body)
    return topic, origin, number


class Accounts:
    """The messages that one process has sent and received."""

    def __init__(self) -> None:
        # The state of each number by topic and origin; the deliveries of each number by topic, channel and origin.
        self.sent: dict[tuple[int, int], bytearray] = defaultdict(bytearray)
        self.seen: dict[tuple[int, int, int], bytearray] = defaultdict(bytearray)
        self.foreign = 0
        self.sent_bytes = 0

    def next_number(self, topic: int, origin: int) -> int:
        """Return the number of the next message to send."""
        numbers = self.sent[topic, origin]
        numbers.append(UNKNOWN)
        return len(numbers) - 1

    def acked(self, topic: int, origin: int, number: int, *, is_deferred: bool = False) -> None:
        """Record the OK of nsqd."""
        self.sent[topic, origin][number] = ACKED_DEFERRED if is_deferred else ACKED

    def received(self, topic: int, channel: int, body: bytes) -> None:
        """Record a delivery."""
        read = read_body(body)
        if read is None or read[0] != topic:
            self.foreign += 1
            return
        _, origin, number = read
        counts = self.seen[topic, channel, origin]
        if len(counts) <= number:
            counts.extend(bytes(number + 1 - len(counts) + 1024))
        counts[number] = min(counts[number] + 1, _MOST)

    def merge(self, other: "Accounts") -> None:
        """Add the accounts of another process."""
        self.foreign += other.foreign
        self.sent_bytes += other.sent_bytes
        for place, numbers in other.sent.items():
            assert place not in self.sent, "two processes have the same origin"
            self.sent[place] = numbers
        for key, counts in other.seen.items():
            mine = self.seen[key]
            mine.extend(bytes(max(0, len(counts) - len(mine))))
            for number, count in enumerate(counts):
                if count:
                    mine[number] = min(mine[number] + count, _MOST)


@dataclass
class Balance:
    """The totals of all accounts."""

    sent: int = 0
    acked: int = 0
    deliveries: int = 0
    lost: int = 0
    deferred_lost: int = 0
    """Lost messages of DPUB; they are not counted in ``lost``."""
    duplicated: int = 0
    foreign: int = 0


def balance(accounts: Accounts, channels: int) -> Balance:
    """Compute the totals. A message is lost if it was acknowledged and a channel of its topic never delivered it."""
    result = Balance(foreign=accounts.foreign)
    for (topic, origin), numbers in accounts.sent.items():
        result.sent += len(numbers)
        result.acked += len(numbers) - numbers.count(UNKNOWN)
        for channel in range(channels):
            seen = accounts.seen[topic, channel, origin]
            seen.extend(bytes(max(0, len(numbers) - len(seen))))
            result.foreign += sum(1 for count in seen[len(numbers) :] if count)
            result.deliveries += sum(seen)
            result.duplicated += sum(count - 1 for count in seen if count > 1)
            missing = [state for state, count in zip(numbers, seen, strict=False) if not count]
            result.lost += missing.count(ACKED)
            result.deferred_lost += missing.count(ACKED_DEFERRED)
    return result
