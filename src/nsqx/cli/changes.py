"""nsqx create, pause, unpause, empty and delete: changes of a topic or a channel on every nsqd that has it.

Exit codes: 0 done on every nsqd; 1 not confirmed, or failed on a daemon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from nsqx.cli.cluster import CLUSTER_FLAGS, ClusterAccess, take_cluster
from nsqx.cli.command_line import read_words
from nsqx.cli.confirmation import YES_FLAG, require_confirmation
from nsqx.cli.json_lines import JSON_FLAG, print_json
from nsqx.cli.readings import Reading, read_nsqds
from nsqx.cluster.daemon import Change, DaemonClient
from nsqx.errors import RequestFailed
from nsqx.flags import STRINGS, Flag
from nsqx.names import invalid_name, is_valid_name
from nsqx.tools.cluster_address import warn
from nsqx.tools.colours import RED, paint
from nsqx.tools.nsqd_refusals import refusal_text
from nsqx.tools.utility import UtilityFailed, counted, write_stdout

if TYPE_CHECKING:
    from nsqx.cluster.lookupd import LookupdClient
    from nsqx.cluster.nsqd import NsqdClient

_NODE_FLAG = Flag("node", STRINGS, [], "only on the nsqd with this HTTP address or host name (may be repeated)")


@dataclass(slots=True)
class ChangeOptions:
    """The options of these commands."""

    topic: str
    channel: str = ""
    cluster: ClusterAccess = field(default_factory=ClusterAccess)
    node: list[str] = field(default_factory=list)
    is_json: bool = False
    is_confirmed: bool = False

    @property
    def subject(self) -> str:
        return f"channel {self.channel} of topic {self.topic}" if self.channel else f"topic {self.topic}"


class _Outcome(NamedTuple):
    """What happened at one daemon; ``error`` is empty if the change was made."""

    daemon: DaemonClient
    error: str


class ChangeCommand:
    """One of the commands."""

    def __init__(self, action: str, past: str, *, is_asked: bool = False) -> None:
        self.PROGRAM = f"nsqx {action}"
        self.FLAGS: tuple[Flag, ...] = (*((YES_FLAG,) if is_asked else ()), _NODE_FLAG, JSON_FLAG, *CLUSTER_FLAGS)
        self._action = action
        self._past = past
        self._is_asked = is_asked

    def read_options(self, argv: Sequence[str]) -> ChangeOptions:
        """Return the options from the command line; raises UsageError or UtilityFailed."""
        values, words = read_words(self.FLAGS, argv, f"{self.PROGRAM} TOPIC [CHANNEL]", least=1, most=2)
        for what, name in zip(("topic", "channel"), words, strict=False):
            if not is_valid_name(name):
                raise UtilityFailed(invalid_name(what, name))
        topic, channel = [*words, ""][:2]
        return ChangeOptions(topic, channel, take_cluster(values), **values)

    async def run(self, options: ChangeOptions, stopping: asyncio.Event) -> int:
        """Make the change and return the exit code; raises UtilityFailed or RequestFailed."""
        nsqds = await _nsqds(options)
        problems: list[str] = []
        if self._action != "create":
            reading = await read_nsqds(nsqds, options.topic, options.channel)
            warn(problems := reading.problems)
            nsqds = _having(nsqds, reading, options)
            if not nsqds:
                raise await options.cluster.nothing_has(options.topic, options.channel)
            if self._is_asked and not options.is_confirmed:
                question = f"{self._action.capitalize()} {_described(reading, options)}?"
                await require_confirmation(question, f"nothing was {self._past}", stopping)
        outcomes: list[_Outcome] = []
        if self._action == "delete" and not options.node:
            # nsqlookupd first: it must not send consumers to an nsqd that no longer has the topic.
            outcomes += await self._apply(await options.cluster.lookupds(), options)
        outcomes += await self._apply(nsqds, options)
        for outcome in outcomes:
            self._print(outcome, options)
        return 1 if problems or any(outcome.error for outcome in outcomes) else 0

    async def _apply(
        self, daemons: Sequence[NsqdClient] | Sequence[LookupdClient], options: ChangeOptions
    ) -> list[_Outcome]:
        return list(await asyncio.gather(*(self._apply_to(daemon, options) for daemon in daemons)))

    async def _apply_to(self, daemon: DaemonClient, options: ChangeOptions) -> _Outcome:
        try:
            if self._action == "create" and options.channel:
                await daemon.apply(Change("create", options.topic))
            await daemon.apply(Change(self._action, options.topic, options.channel))
        except RequestFailed as failure:
            # nsqlookupd may not know the name (any more), and another client may have deleted it.
            is_gone = self._action == "delete" and failure.status == 404
            return _Outcome(daemon, "" if is_gone else refusal_text(failure))
        return _Outcome(daemon, "")

    def _print(self, outcome: _Outcome, options: ChangeOptions) -> None:
        daemon, error = outcome
        if options.is_json:
            named = {"topic": options.topic, **({"channel": options.channel} if options.channel else {})}
            print_json({daemon.kind: daemon.address, "action": self._action, **named, "ok": not error, "error": error})
            return
        text = paint(f"failed: {error}", RED) if error else self._past
        write_stdout(f"{daemon}: {options.subject} {text}\n".encode())


async def _nsqds(options: ChangeOptions) -> list[NsqdClient]:
    if options.node:
        return [await options.cluster.node(name) for name in dict.fromkeys(options.node)]
    return await options.cluster.nsqds()


def _having(nsqds: Sequence[NsqdClient], reading: Reading, options: ChangeOptions) -> list[NsqdClient]:
    """Return the nsqds that have the topic or channel."""
    having = {
        address
        for address, document in reading.found
        for entry in document["topics"] or []
        if entry["topic_name"] == options.topic
        and (not options.channel or any(each["channel_name"] == options.channel for each in entry["channels"] or []))
    }
    return [nsqd for nsqd in nsqds if nsqd.address in having]


def _described(reading: Reading, options: ChangeOptions) -> str:
    """Return the topic or channel with what a confirmation must know: its messages, consumers and nsqds."""
    sums = reading.sums()
    own = sums[options.topic, options.channel]
    of_channels = [each for each in sums.values() if each.channel and each.topic == options.topic]
    shown = [own] if options.channel else [own, *of_channels]
    counts = ("depth", "in_flight_count", "deferred_count")
    messages = sum(each.counts[name] for each in shown for name in counts)
    consumers = sum(each.counts["client_count"] for each in shown)
    parts = [] if options.channel else [counted(len(of_channels), "channel")]
    parts += [counted(messages, "message"), counted(consumers, "consumer"), f"on {counted(own.nsqds, 'nsqd')}"]
    return f"{options.subject} ({', '.join(parts)})"


CREATE = ChangeCommand("create", "created")
PAUSE = ChangeCommand("pause", "paused")
UNPAUSE = ChangeCommand("unpause", "unpaused")
EMPTY = ChangeCommand("empty", "emptied", is_asked=True)
DELETE = ChangeCommand("delete", "deleted", is_asked=True)
