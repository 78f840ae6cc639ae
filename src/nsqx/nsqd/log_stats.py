"""The numbers of log topics and conversions in /stats and /metrics."""

from typing import Annotated, NamedTuple, TypedDict

from nsqx.nsqd.histogram import Histogram
from nsqx.units import NS_PER_MS


class LogStats(TypedDict):
    """The log of a topic."""

    store: str
    durability: Annotated[str, "`fsync` or `write`: when a publish is acknowledged."]
    id: Annotated[str, "Another one if the topic is deleted and created again."]
    first: Annotated[int, "The first offset that the log still has."]
    stable: Annotated[int, "The messages before this offset are durable."]
    end: Annotated[int, "The offset of the next message."]
    bytes: Annotated[int, "The size of the log, with what is not in its segments yet."]
    segments: int
    deferred_count: Annotated[int, "Deferred messages that are not due."]
    refused: Annotated[
        dict[str, int], "Refused publishes since the start, by reason: `no_space`, `write_failed` or `log_full`."
    ]
    producers: Annotated[int, "Producers whose last number is known."]
    producers_forgotten: Annotated[int, "Producers forgotten since the start, by --dedup-producers and --dedup-age."]
    duplicates: Annotated[int, "Publishes since the start that were not stored, because they were stored before."]
    kept_bytes: Annotated[int, "The size of finished segments that are kept for replay."]
    dropped: Annotated[
        int,
        "Unfinished messages that a limit or a trim has dropped since the start: once for each channel, and once for "
        "the topic if no channel had them.",
    ]
    expired: Annotated[int, "Messages finished since the start because of their time to live, for each channel."]


class CursorStats(TypedDict):
    """The position of a channel in the log of its topic."""

    floor: Annotated[int, "The first unfinished offset."]
    next: Annotated[int, "The first offset that was never delivered."]
    holes: Annotated[int, "Unfinished messages before `next`: in flight, requeued or deferred."]
    dead: Annotated[int, "Messages finished at the attempt limit since the start."]
    dropped: Annotated[int, "Unfinished messages that a limit or a trim has dropped since the start."]
    expired: Annotated[int, "Messages finished since the start because of their time to live."]
    oldest: Annotated[int, "The time of the first unfinished message, about; nanoseconds since 1970, or 0."]


# "from" is a keyword of Python.
ConversionStats = TypedDict(
    "ConversionStats",
    {
        "from": Annotated[str, "`classic` or `log`: where messages are moved from."],
        "to": Annotated[str, "`classic` or `log`: the store that publishes go to."],
        "moved": Annotated[int, "Messages moved since the conversion or nsqd has started."],
        "left": Annotated[int, "Messages that are still in the old store, counted for each channel."],
    },
)


NO_SPACE, WRITE_FAILED, LOG_FULL = "no_space", "write_failed", "log_full"
DURATIONS_NS = tuple(int(ms * NS_PER_MS) for ms in (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500))
MESSAGE_COUNTS = (0, 1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000)


class CommitStats(NamedTuple):
    """The commits and checkpoints of all logs of a broker."""

    commits: Histogram  # durations in nanoseconds
    messages: Histogram  # of a commit
    checkpoints: Histogram
    held_clients: int
    fill_ratio: float
    damaged_count: int
    memory_size: int
    cold_read_count: int
