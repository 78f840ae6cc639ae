"""nsqx seek: moves a channel of a log topic to an offset or a time, on every nsqd that has it.

      nsqx seek TOPIC CHANNEL --to=POSITION [--dry-run] [--yes]

Exit codes: 0 moved, or a dry run; 1 not confirmed, or failed on an nsqd.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from nsqx.cli.cluster import CLUSTER_FLAGS, ClusterAccess, take_cluster
from nsqx.cli.command_line import read_words
from nsqx.cluster.fan_out import ask_all
from nsqx.cluster.nsqd import NsqdClient
from nsqx.errors import RequestFailed
from nsqx.flags import BOOL, STRING, Flag
from nsqx.tools.cluster_address import warn
from nsqx.tools.confirm import confirm
from nsqx.tools.nsqd_refusals import TOPIC_NOT_FOUND, refusal_text
from nsqx.tools.table import print_table
from nsqx.tools.utility import UtilityFailed, write_stdout

PROGRAM = "nsqx seek"
_POSITIONS = "beginning, end, an offset, a time (2026-11-18T06:00:00Z) or a duration before now (-1h)"
_NAMES = ("beginning", "end")
_COLUMNS = ("nsqd", "from", "to", "depth now", "depth then", "in flight", "forgotten")
_OPTIONAL = ("forgotten", "in flight", "from")
_REQUEST_TIMEOUT_S = 60.0

FLAGS: tuple[Flag, ...] = (
    *CLUSTER_FLAGS,
    Flag("to", STRING, "", f"the new `position`: {_POSITIONS}"),
    Flag("dry-run", BOOL, False, "only show what would be done"),
    Flag("yes", BOOL, False, "do not ask for confirmation"),
)


@dataclass(slots=True)
class SeekOptions:
    """The options of nsqx seek."""

    topic: str
    channel: str
    cluster: ClusterAccess = field(default_factory=ClusterAccess)
    to: str = ""
    dry_run: bool = False
    yes: bool = False


def read_options(argv: Sequence[str]) -> SeekOptions:
    """Return the options from the command line; raises UsageError or UtilityFailed."""
    values, words = read_words(FLAGS, argv, f"{PROGRAM} TOPIC CHANNEL --to=POSITION", least=2, most=2)
    if not values["to"]:
        raise UtilityFailed(f"--to is required: {_POSITIONS}")
    return SeekOptions(words[0], words[1], cluster=take_cluster(values, request_timeout_s=_REQUEST_TIMEOUT_S), **values)


async def run(options: SeekOptions, stopping: asyncio.Event) -> int:
    """Show what would be done, then do it if confirmed; return the exit code; raises UtilityFailed."""
    plans, has_problems = await _plan(options, await options.cluster.nsqds())
    print_table(_COLUMNS, [_row(address, plan) for address, plan in plans], optional=_OPTIONAL)
    if options.dry_run:
        return 1 if has_problems else 0
    noun = "nsqd" if len(plans) == 1 else "nsqds"
    if not options.yes:
        if not sys.stdin.isatty():
            raise UtilityFailed("nothing was moved: add --yes to confirm, or --dry-run to only see this table")
        question = f"Move channel {options.channel} of {options.topic} on {len(plans)} {noun}?"
        if not await confirm(question, stopping):
            raise UtilityFailed("nothing was moved")
    return await _move(options, plans) or (1 if has_problems else 0)


async def _plan(options: SeekOptions, nsqds: list[NsqdClient]) -> tuple[list[tuple[str, dict[str, Any]]], bool]:
    """Return what each nsqd would do, and whether one cannot do it; raises UtilityFailed if none can."""
    answers = await ask_all(nsqds, NsqdClient.seek, options.topic, options.channel, options.to, is_dry_run=True)
    invalid = [failure for _, failure in answers.failures if failure.code == "INVALID_POSITION"]
    if invalid:
        raise UtilityFailed(f"invalid --to={options.to}: use {_POSITIONS}")
    problems = [
        f"{nsqd}: {refusal_text(failure)}" for nsqd, failure in answers.failures if failure.code != TOPIC_NOT_FOUND
    ]
    if not answers.found and not problems:
        raise await options.cluster.nothing_has(options.topic)
    if not answers.found:
        raise UtilityFailed("; ".join(problems))
    warn(problems)
    return answers.found, bool(problems)


def _row(address: str, plan: dict[str, Any]) -> list[str]:
    names = ("from", "to", "depth_before", "depth", "in_flight", "forgotten")
    return [address, *(str(plan[name]) for name in names)]


async def _move(options: SeekOptions, plans: list[tuple[str, dict[str, Any]]]) -> int:
    """Move the channel on each nsqd and print the outcomes; return the exit code."""
    code = 0
    for address, plan in plans:
        # A time may mean another message now.
        to = options.to if options.to in _NAMES else str(plan["to"])
        try:
            done = await NsqdClient(options.cluster.http, address).seek(options.topic, options.channel, to)
        except RequestFailed as failure:
            write_stdout(f"{address}: not moved: {refusal_text(failure)}\n".encode())
            code = 1
        else:
            text = f"{address}: moved from {done['from']} to {done['to']}, depth {done['depth']}\n"
            write_stdout(text.encode())
    return code
