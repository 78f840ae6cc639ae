"""The JSON documents of nsqadmin's API for logs, stored messages and dead letters, as types.

The schemas in /openapi.json are made from these types. Times in nanoseconds are texts.
"""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from nsqx.nsqadmin.api_types import WarningField

NodeField = Annotated[str, "The HTTP address of one nsqd that has the topic; by default all of them."]
TimeNsField = Annotated[str, "Nanoseconds since 1970, as text."]
OptionalOffset = Annotated[int | None, "Null if the topic has no log."]
CodeField = Annotated[str, "Empty, or the code of a failure. `NOT_AVAILABLE`: this nsqd does not have the function."]
ErrorField = Annotated[str, "Empty, or the reason of a failure in plain words."]


class NodeLogNumbers(TypedDict):
    """The log of a topic on one nsqd. Numbers that the nsqd does not report are null."""

    store: str
    durability: str
    id: str
    first: Annotated[int, "The first offset that the log still has."]
    stable: Annotated[int, "The messages before this offset are durable."]
    end: Annotated[int, "The offset of the next message."]
    bytes: int
    segments: int
    deferred_count: int
    kept_bytes: Annotated[int | None, "The size of the messages that all channels have finished."]
    dropped: Annotated[int | None, "Unfinished messages that a limit or a trim has dropped."]
    expired: Annotated[int | None, "Messages that were older than their time to live."]
    duplicates: int | None
    first_time: Annotated[str | None, "The time of the first message, in RFC 3339."]
    bytes_per_message: int | None


class ChannelPlace(TypedDict):
    """The position of a channel in the log on one nsqd, and its messages."""

    channel: str
    depth: int
    in_flight_count: int
    deferred_count: int
    floor: Annotated[int, "The first unfinished offset."]
    next: Annotated[int, "The first offset that was never delivered."]
    holes: Annotated[int, "Unfinished messages before `next`."]
    dropped: int | None
    expired: int | None
    dead: Annotated[int | None, "Messages that became dead letters."]
    oldest_ns: Annotated[str | None, "The time of the oldest unfinished message; null if there is none."]


class NodeConfig(TypedDict):
    """The settings of a topic or a channel on one nsqd."""

    code: CodeField
    error: ErrorField
    settings: Annotated[dict[str, Any], "The values in use."]
    changed: Annotated[list[str], "The settings that were set over HTTP."]


class NodeLog(TypedDict):
    """A topic on one nsqd; ``log`` is null if the topic has no log there."""

    node: str
    code: CodeField
    error: ErrorField
    log: NodeLogNumbers | None
    channels: list[ChannelPlace]
    config: NodeConfig


class TopicLogDocument(TypedDict):
    """The logs of a topic."""

    topic: str
    nodes: list[NodeLog]
    message: WarningField


class NodeChannelConfig(NodeConfig):
    """The settings of a channel on one nsqd."""

    node: str


class ChannelConfigDocument(TypedDict):
    """The settings of a channel on each nsqd."""

    topic: str
    channel: str
    nodes: list[NodeChannelConfig]
    message: WarningField


class ConfigBody(TypedDict):
    """Settings to change."""

    settings: Annotated[dict[str, str | int | None], "The new values. Null returns a setting to its configured value."]
    node: NotRequired[NodeField]


class SeekBody(TypedDict):
    """The new position of a channel."""

    to: Annotated[str, "`beginning`, `end`, a time, or an offset, which needs `node`."]
    node: NotRequired[NodeField]
    dry_run: NotRequired[Annotated[bool, "True shows the effect and changes nothing."]]


class TrimBody(TypedDict):
    """The position before which messages are dropped."""

    before: Annotated[str, "`end`, a time, or an offset, which needs `node`."]
    node: NotRequired[NodeField]
    dry_run: NotRequired[Annotated[bool, "True shows the effect and changes nothing."]]


class _NodeOutcome(TypedDict):
    kind: Literal["nsqd"]
    address: str
    code: CodeField
    error: ErrorField


# "from" is a keyword of Python.
SeekEffect = TypedDict(
    "SeekEffect",
    {
        "from": Annotated[int, "The next offset before."],
        "to": Annotated[int, "The next offset after."],
        "depth_before": Annotated[int, "Waiting messages before."],
        "depth": Annotated[int, "Waiting messages after."],
        "in_flight": Annotated[int, "Messages in flight that are forgotten."],
        "forgotten": Annotated[int, "Requeued and deferred messages that are forgotten."],
    },
)


class SeekOutcome(_NodeOutcome):
    """The effect on one nsqd; ``result`` is null after a failure."""

    result: SeekEffect | None


class SeekDocument(TypedDict):
    """The effect of a seek on each nsqd."""

    outcomes: list[SeekOutcome]
    message: str


class TrimEffect(TypedDict):
    """What a trim drops."""

    before: int
    first: Annotated[int, "The first offset after."]
    dropped: Annotated[dict[str, int], "Unfinished messages that are dropped, by channel."]
    dropped_from_topic: Annotated[int | None, "Dropped messages that no channel has."]
    bytes: Annotated[int, "The size of the files that are deleted."]


class TrimOutcome(_NodeOutcome):
    """The effect on one nsqd; ``result`` is null after a failure."""

    result: TrimEffect | None


class TrimDocument(TypedDict):
    """The effect of a trim on each nsqd."""

    outcomes: list[TrimOutcome]
    message: str


class ConfigResult(TypedDict):
    """The settings after a change."""

    settings: dict[str, Any]
    changed: list[str]


class ConfigOutcome(_NodeOutcome):
    """The settings on one nsqd; ``result`` is null after a failure."""

    result: ConfigResult | None


class ConfigDocument(TypedDict):
    """The settings on each nsqd after a change."""

    outcomes: list[ConfigOutcome]
    message: str


class StoredOrigin(TypedDict):
    """Where a dead letter comes from."""

    topic: str
    channel: str
    offset: OptionalOffset
    id: str
    timestamp_ns: TimeNsField
    attempts: int | None
    reason: str
    consumer: str
    time_ns: Annotated[str, "When the message failed, in nanoseconds since 1970."]


class StoredMessageDocument(TypedDict):
    """A message on one nsqd."""

    node: str
    offset: OptionalOffset
    id: str
    timestamp_ns: TimeNsField
    attempts: Annotated[int | None, "Null if it is not known."]
    state: Annotated[str, "`waiting`, `in_flight` or `deferred`; empty if it is not known."]
    due_ns: Annotated[str | None, "When a deferred message is due."]
    encoding: Literal["text", "base64"]
    body: str
    size: Annotated[int, "The size of the whole body."]
    truncated: bool
    origin: Annotated[StoredOrigin | None, "Only of dead letters."]


class BrowsedNode(TypedDict):
    """The end of a page on one nsqd."""

    node: str
    code: CodeField
    error: ErrorField
    store: str
    next: Annotated[int | None, "Where the next page begins: `offset`, or `skip` for a topic without a log."]
    end: Annotated[int | None, "The end of the log."]
    scanned: Annotated[int, "How many messages were looked at."]
    complete: Annotated[bool, "False if there are more messages."]


class BrowseDocument(TypedDict):
    """Stored messages of a topic, oldest first."""

    topic: str
    channel: str
    nodes: list[BrowsedNode]
    messages: list[StoredMessageDocument]
    message: WarningField


class DeadLetterNode(TypedDict):
    """The dead letters on one nsqd."""

    node: str
    code: CodeField
    error: ErrorField
    dead_letter: Annotated[str, "The dead-letter topic; empty if there is none."]
    count: Annotated[int, "The number of dead letters."]
    next: Annotated[int | None, "The offset at which the next page begins."]
    complete: Annotated[bool, "False if there are more letters."]


class DeadLetterDocument(TypedDict):
    """The dead letters of a topic, oldest first."""

    topic: str
    channel: str
    count: int
    nodes: list[DeadLetterNode]
    messages: list[StoredMessageDocument]
    message: WarningField


class ChosenLetter(TypedDict):
    """A dead letter."""

    node: str
    offset: Annotated[int, "Its offset in the dead-letter topic."]


class DeadLetterBody(TypedDict):
    """What to do with which dead letters."""

    action: Literal["redrive", "purge"]
    letters: NotRequired[Annotated[list[ChosenLetter], "By default all."]]
    channel: NotRequired[Annotated[str, "Only those that this channel has failed."]]
    node: NotRequired[NodeField]


class DeadLetterResult(TypedDict):
    """How many letters were redriven or purged, and how many are left."""

    redriven: NotRequired[int]
    purged: NotRequired[int]
    left: int


class DeadLetterOutcome(_NodeOutcome):
    """The result on one nsqd; ``result`` is null after a failure."""

    result: DeadLetterResult | None


class DeadLetterOutcomes(TypedDict):
    """The result on each nsqd."""

    outcomes: list[DeadLetterOutcome]
    message: str
