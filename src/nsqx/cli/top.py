"""nsqx top: shows the rates and backlogs of all channels, redrawn in place on a terminal until q is pressed."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from nsqx.cli.cluster import CLUSTER_FLAGS, ClusterAccess, take_cluster
from nsqx.cli.command_line import read_words
from nsqx.cli.json_lines import JSON_FLAG, print_json
from nsqx.cli.keyboard import Keyboard
from nsqx.cli.readings import read_cluster
from nsqx.cli.top_view import SORTS, TopView
from nsqx.errors import NSQError, RequestFailed
from nsqx.flags import DURATION, INT, STRING, Flag
from nsqx.tools.live_text import LiveText
from nsqx.tools.utility import UtilityFailed
from nsqx.units import NS_PER_S

PROGRAM = "nsqx top"

FLAGS: tuple[Flag, ...] = (
    Flag("interval", DURATION, 2 * NS_PER_S, "time between two readings"),
    Flag("sort", STRING, "depth", f"`key` to sort by: {', '.join(SORTS)}"),
    Flag("count", INT, 0, "end after this many readings; 0 for no end"),
    JSON_FLAG,
    *CLUSTER_FLAGS,
)


@dataclass(slots=True)
class TopOptions:
    """The options of nsqx top."""

    topic: str = ""
    cluster: ClusterAccess = field(default_factory=ClusterAccess)
    interval: int = 2 * NS_PER_S
    """In nanoseconds."""
    sort: str = "depth"
    count: int = 0
    is_json: bool = False


def read_options(argv: Sequence[str]) -> TopOptions:
    """Return the options from the command line; raises UsageError or UtilityFailed."""
    values, words = read_words(FLAGS, argv, f"{PROGRAM} [TOPIC]", most=1)
    if values["interval"] <= 0:
        raise UtilityFailed("--interval must be positive")
    if values["count"] < 0:
        raise UtilityFailed("--count must not be negative")
    if values["sort"] not in SORTS:
        raise UtilityFailed(f'invalid --sort "{values["sort"]}": use {", ".join(SORTS)}')
    return TopOptions(words[0] if words else "", take_cluster(values), **values)


async def run(options: TopOptions, stopping: asyncio.Event) -> int:
    """Show the channels until the end; return the exit code; raises UtilityFailed or RequestFailed."""
    view = TopView(options.sort)
    # A wrong topic or an unreachable cluster ends the command. Later failures are shown, and may pass.
    reading = await read_cluster(options.cluster, options.topic)
    if options.topic and not reading.topics:
        raise await options.cluster.nothing_has(options.topic)
    view.note(reading)
    pressed = asyncio.Event()

    def on_key(key: str) -> None:
        view.press(key)
        pressed.set()

    live = LiveText()
    is_live = live.is_in_place and not options.is_json
    number = 1
    with Keyboard(on_key) if is_live else contextlib.nullcontext():
        while True:
            _show(view, options, live)
            if number == options.count:
                return 0
            refreshing = asyncio.create_task(_refresh(options, view))
            try:
                while not refreshing.done():
                    await _any(refreshing, pressed, stopping)
                    if stopping.is_set() or view.is_ended:
                        return 0
                    if pressed.is_set():
                        pressed.clear()
                        _show(view, options, live)
            finally:
                refreshing.cancel()
            number += 1


async def _refresh(options: TopOptions, view: TopView) -> None:
    """Read the cluster again after the interval."""
    await asyncio.sleep(options.interval / NS_PER_S)
    try:
        view.note(await read_cluster(options.cluster, options.topic))
    except NSQError as error:
        view.problems = [error.plain if isinstance(error, RequestFailed) else str(error)]


async def _any(task: asyncio.Task[None], *events: asyncio.Event) -> None:
    """Return when the task is done or an event is set."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait([task, *waiting], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()


def _show(view: TopView, options: TopOptions, live: LiveText) -> None:
    if options.is_json:
        for row in view.sorted_rows():
            print_json(row.document)
        for problem in view.problems:
            print(f"WARNING: {problem}", file=sys.stderr)
    else:
        live.show(view.text(shutil.get_terminal_size().lines - 1 if live.is_in_place else 0))
