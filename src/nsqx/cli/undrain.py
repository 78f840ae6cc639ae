"""nsqx undrain: ends a drain, so that nsqd accepts publishes and registers with nsqlookupd again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson

from nsqx.cli.cluster import CLUSTER_FLAGS, ClusterAccess, take_cluster
from nsqx.cli.command_line import read_words
from nsqx.cli.drain import ask, state_text
from nsqx.flags import BOOL, Flag
from nsqx.tools.utility import write_stdout

PROGRAM = "nsqx undrain"

FLAGS: tuple[Flag, ...] = (*CLUSTER_FLAGS, Flag("json", BOOL, False, "print the state as JSON"))


@dataclass(slots=True)
class UndrainOptions:
    """The options of nsqx undrain."""

    node: str = ""
    cluster: ClusterAccess = field(default_factory=ClusterAccess)
    json: bool = False


def read_options(argv: Sequence[str]) -> UndrainOptions:
    """Return the options from the command line; raises UsageError or UtilityFailed."""
    values, words = read_words(FLAGS, argv, f"{PROGRAM} [NODE]", most=1)
    return UndrainOptions(words[0] if words else "", take_cluster(values), **values)


async def run(options: UndrainOptions, _stopping: asyncio.Event) -> int:
    """End the drain and return the exit code; raises UtilityFailed or RequestFailed."""
    nsqd = await options.cluster.node(options.node)
    state = await ask(nsqd, "POST", "/undrain")
    if options.json:
        write_stdout(orjson.dumps({"nsqd": nsqd.address, **state}, option=orjson.OPT_APPEND_NEWLINE))
    else:
        write_stdout(state_text(nsqd.address, state).encode())
    return 0
