"""nsqx drain: makes an nsqd refuse publishes and deliver what it has, before it is removed.

      nsqx drain [NODE] [--wait [--timeout=50s]]
      nsqx drain [NODE] --status

Exit codes: 0 the drain has begun, or with --wait the nsqd can be removed; 1 it cannot, or not yet.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from nsqx.cli.cluster import CLUSTER_FLAGS, ClusterAccess, take_cluster
from nsqx.cli.command_line import read_words
from nsqx.errors import RequestFailed
from nsqx.flags import BOOL, DURATION, Flag
from nsqx.gotext import format_duration
from nsqx.tools.live_text import LiveText
from nsqx.tools.nsqd_refusals import refusal_text
from nsqx.tools.utility import UtilityFailed, counted, log_line, write_stdout
from nsqx.units import NS_PER_S

if TYPE_CHECKING:
    from nsqx.cluster.nsqd import NsqdClient

PROGRAM = "nsqx drain"
_POLL_S = 0.5
# In a pipe what is left is printed at most this often.
_PRINT_S = 5.0
_MAX_SHOWN = 10

FLAGS: tuple[Flag, ...] = (
    *CLUSTER_FLAGS,
    Flag("wait", BOOL, False, "wait until nsqd has no messages, and print what is left meanwhile"),
    Flag("timeout", DURATION, 0, "with --wait: end with exit code 1 after this time; default no limit"),
    Flag("stay-registered", BOOL, False, "stay registered with nsqlookupd, so that new consumers find this nsqd"),
    Flag("status", BOOL, False, "only show the state of the drain; do not begin one"),
    Flag("json", BOOL, False, "print the state as JSON; with --wait a line whenever it changes"),
)


@dataclass(slots=True)
class DrainOptions:
    """The options of nsqx drain."""

    node: str = ""
    cluster: ClusterAccess = field(default_factory=ClusterAccess)
    wait: bool = False
    timeout: int = 0
    """In nanoseconds; 0 for no limit."""
    stay_registered: bool = False
    status: bool = False
    json: bool = False


def read_options(argv: Sequence[str]) -> DrainOptions:
    """Return the options from the command line; raises UsageError or UtilityFailed."""
    values, words = read_words(FLAGS, argv, f"{PROGRAM} [NODE]", most=1)
    if values["timeout"] < 0:
        raise UtilityFailed("--timeout must not be negative")
    if values["timeout"] and not values["wait"]:
        raise UtilityFailed("--timeout needs --wait")
    if values["status"] and (values["wait"] or values["stay_registered"]):
        raise UtilityFailed("--status only shows the state: use it without --wait and --stay-registered")
    return DrainOptions(words[0] if words else "", take_cluster(values), **values)


async def run(options: DrainOptions, stopping: asyncio.Event) -> int:
    """Begin the drain, and wait for its end if wanted; return the exit code; raises UtilityFailed or RequestFailed."""
    nsqd = await options.cluster.node(options.node)
    output = _Output(nsqd.address, is_json=options.json)
    if options.status:
        output.show(await ask(nsqd, "GET", "/drain"), is_last=True)
        return 0
    query = {"stay_registered": "true"} if options.stay_registered else {}
    state = await ask(nsqd, "POST", "/drain", query)
    if not options.wait:
        output.show(state, is_last=True)
        return 0
    deadline_s = time.monotonic() + options.timeout / NS_PER_S if options.timeout else None
    while not state["removable"]:
        output.show(state)
        if await _stopped_within(stopping, _POLL_S, deadline_s):
            output.show(state, is_last=True)
            raise UtilityFailed(f"stopped: nsqd {nsqd.address} still drains; nsqx undrain {nsqd.address} ends that")
        if deadline_s is not None and time.monotonic() >= deadline_s:
            output.show(state, is_last=True)
            raise UtilityFailed(
                f"nsqd {nsqd.address} still has messages after {format_duration(options.timeout)}, and still drains"
            )
        state = await _next_state(nsqd, state, has_deadline=deadline_s is not None)
        if not state["draining"]:
            raise UtilityFailed(
                f"nsqd {nsqd.address} does not drain any more: it was restarted, or the drain was ended"
            )
    output.show(state, is_last=True)
    return 0


async def ask(nsqd: NsqdClient, method: str, path: str, query: dict[str, str] | None = None) -> dict[str, Any]:
    """Return the state of the drain from the answer of a route; raises UtilityFailed."""
    try:
        return await nsqd.ask_object(method, path, query or {})
    except RequestFailed as failure:
        raise UtilityFailed(f"{nsqd}: {refusal_text(failure)}") from None


async def _next_state(nsqd: NsqdClient, before: dict[str, Any], *, has_deadline: bool) -> dict[str, Any]:
    """Return the state, or with a deadline the one before if nsqd does not answer now."""
    if not has_deadline:
        return await ask(nsqd, "GET", "/drain")
    try:
        return await ask(nsqd, "GET", "/drain")
    except UtilityFailed as failure:
        log_line(f"WARNING: {failure}")
        return before


async def _stopped_within(stopping: asyncio.Event, seconds: float, deadline_s: float | None) -> bool:
    if deadline_s is not None:
        seconds = min(seconds, max(0, deadline_s - time.monotonic()))
    try:
        async with asyncio.timeout(seconds):
            await stopping.wait()
    except TimeoutError:
        return False
    return True


class _Output:
    """Prints the state of a drain: in place on a terminal, and in a pipe when it has changed."""

    def __init__(self, address: str, *, is_json: bool) -> None:
        self._address = address
        self._is_json = is_json
        self._live = LiveText()
        self._printed: dict[str, Any] | None = None
        self._printed_at_s = 0.0

    def show(self, state: dict[str, Any], *, is_last: bool = False) -> None:
        if self._is_json or not self._live.is_in_place:
            now_s = time.monotonic()
            is_early = self._printed is not None and now_s < self._printed_at_s + _PRINT_S
            if state == self._printed or (is_early and not is_last):
                return
            self._printed, self._printed_at_s = state, now_s
        if self._is_json:
            write_stdout(orjson.dumps({"nsqd": self._address, **state}, option=orjson.OPT_APPEND_NEWLINE))
        else:
            self._live.show(state_text(self._address, state))


def state_text(address: str, state: dict[str, Any]) -> str:
    """Return the state of a drain as lines."""
    if not state["draining"]:
        return f"nsqd {address} does not drain, and accepts publishes\n"
    if state["removable"]:
        return f"nsqd {address} has no messages left and can be removed\n"
    registered = "it stays registered with nsqlookupd" if state["registered"] else "it has left nsqlookupd"
    lines = [
        f"nsqd {address} drains: publishes are refused, {registered}",
        f"{counted(state['messages'], 'message')} left:",
    ]
    remaining = state["remaining"]
    lines += [f"  {_remainder(each)}" for each in remaining[:_MAX_SHOWN]]
    if len(remaining) > _MAX_SHOWN:
        lines.append(f"  and others: nsqx drain {address} --status --json lists up to {len(remaining)} channels")
    return "".join(f"{line}\n" for line in lines)


def _remainder(each: dict[str, Any]) -> str:
    counts = [f"{each[name]:,} {name.replace('_', ' ')}" for name in ("depth", "in_flight", "deferred") if each[name]]
    counts = [count.replace("depth", "waiting") for count in counts]
    if not each["channel"]:
        return f"{each['topic']}: {', '.join(counts)}; no channel: move or empty them"
    consumers = each["consumers"]
    who = counted(consumers, "consumer") if consumers else "no consumer: start one, move or empty them"
    return f"{each['topic']}/{each['channel']}: {', '.join(counts)}; {who}"
