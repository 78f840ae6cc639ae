"""nsqx log trim: drops the oldest messages of a log topic on running nsqds, finished or not.

      nsqx log trim TOPIC --before=OFFSET|TIME|end [--dry-run] [--yes] [--nsqd-http-address=ADDRESS...]

Without --dry-run, --yes is required, or a confirmation on a terminal. Each nsqd has its own outcome.
Exit codes: 0 success; 1 an nsqd has failed, or nothing was confirmed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from nsqx.cli.cluster import CLUSTER_FLAGS, ClusterAccess, take_cluster
from nsqx.cli.run_tool import run_utility
from nsqx.cluster.fan_out import ask_all
from nsqx.cluster.nsqd import NsqdClient
from nsqx.errors import ConfigError, RequestFailed
from nsqx.flags import BOOL, STRING, Flag
from nsqx.tools.cluster_address import warn
from nsqx.tools.confirm import confirm
from nsqx.tools.nsqd_refusals import TOPIC_NOT_FOUND, refusal_text
from nsqx.tools.utility import UtilityFailed, write_stdout

PROGRAM = "nsqx log trim"
_POSITIONS = "end, an offset, a time (2026-11-18T06:00:00Z) or a duration before now (-24h)"
_REQUEST_TIMEOUT_S = 60.0

FLAGS: tuple[Flag, ...] = (
    Flag("before", STRING, "", f"trim: the `position` of the first message that stays: {_POSITIONS}"),
    Flag("dry-run", BOOL, False, "trim: only print what would be dropped", config_key="is_dry_run"),
    Flag("yes", BOOL, False, "trim: do not ask for a confirmation", config_key="is_confirmed"),
    *CLUSTER_FLAGS,
)


@dataclass(slots=True)
class TrimOptions:
    """The options of nsqx log trim."""

    topic: str
    before: str
    is_dry_run: bool = False
    is_confirmed: bool = False
    cluster: ClusterAccess = field(default_factory=ClusterAccess)


def main(topics: Sequence[str], values: dict[str, Any]) -> int:
    """Trim the log of a topic; ``values`` are those of the flags. Return the exit code."""

    def read_options(_argv: Sequence[str]) -> TrimOptions:
        if len(topics) != 1:
            raise ConfigError("trim needs one topic, for example: nsqx log trim orders --before=-24h")
        if not values["before"]:
            raise ConfigError(f"--before is required: {_POSITIONS}")
        cluster = take_cluster(values, request_timeout_s=_REQUEST_TIMEOUT_S)
        return TrimOptions(topics[0], values["before"], values["is_dry_run"], values["is_confirmed"], cluster)

    return run_utility(PROGRAM, (), read_options, run)


async def run(options: TrimOptions, stopping: asyncio.Event) -> int:
    """Show what would be dropped, then drop it if confirmed; return the exit code; raises UtilityFailed."""
    plans, has_problems = await _plan(options, await options.cluster.nsqds())
    if options.is_dry_run:
        _print(plans)
        return 1 if has_problems else 0
    if not options.is_confirmed:
        _print(plans)
        if not sys.stdin.isatty():
            raise UtilityFailed("nothing was dropped: add --yes to confirm, or --dry-run to only see this")
        if not await confirm(f"Drop these messages of {options.topic}?", stopping):
            raise UtilityFailed("nothing was dropped")
    return await _trim(options, plans) or (1 if has_problems else 0)


async def _plan(options: TrimOptions, nsqds: list[NsqdClient]) -> tuple[list[tuple[str, dict[str, Any]]], bool]:
    """Return what each nsqd would drop, and whether one cannot do it; raises UtilityFailed if none can."""
    answers = await ask_all(nsqds, NsqdClient.trim_log, options.topic, options.before, is_dry_run=True)
    if any(failure.code == "INVALID_POSITION" for _, failure in answers.failures):
        raise UtilityFailed(f"invalid --before={options.before}: use {_POSITIONS}")
    problems = [
        f"{nsqd}: {refusal_text(failure)}" for nsqd, failure in answers.failures if failure.code != TOPIC_NOT_FOUND
    ]
    if not answers.found and not problems:
        raise await options.cluster.nothing_has(options.topic)
    if not answers.found:
        raise UtilityFailed("; ".join(problems))
    warn(problems)
    return answers.found, bool(problems)


async def _trim(options: TrimOptions, plans: list[tuple[str, dict[str, Any]]]) -> int:
    """Trim the log on each nsqd and print the outcomes; return the exit code."""
    code = 0
    for address, plan in plans:
        # A time may mean another message now.
        before = options.before if options.before == "end" else str(plan["before"])
        try:
            done = await NsqdClient(options.cluster.http, address).trim_log(options.topic, before)
        except RequestFailed as failure:
            write_stdout(f"{address}: nothing was dropped: {refusal_text(failure)}\n".encode())
            code = 1
        else:
            _print([(address, done)])
    return code


def _print(answers: Sequence[tuple[str, dict[str, Any]]]) -> None:
    for address, answer in answers:
        dropped = [f"{count} of {name}" for name, count in answer["dropped"].items()]
        if answer["dropped_from_topic"]:
            dropped.append(f"{answer['dropped_from_topic']} of no channel")
        verb = "would drop" if answer["dry_run"] else "dropped"
        text = ", ".join(dropped) or "no unfinished messages"
        line = f"{address}: {verb} {text}; before offset {answer['before']}, {answer['bytes']} bytes\n"
        write_stdout(line.encode())
