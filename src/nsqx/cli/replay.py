"""nsqx replay: publishes the messages of an archive again, all or those that match a condition, in order of time."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from nsqx.cli.cluster import tcp_cluster
from nsqx.cli.command_line import read_words
from nsqx.cli.spark_flags import CLUSTER_FLAGS, check_packages
from nsqx.cli.stop_signals import stop_signals
from nsqx.client.blocking import Producer
from nsqx.client.options import read_option_flags
from nsqx.errors import ConfigError, NSQError
from nsqx.flags import BOOL, INT, STRING, Flag, UsageError
from nsqx.names import invalid_name, is_valid_name
from nsqx.tools.to_nsq import STREAM_PUBLISH_TIMEOUT_S

if TYPE_CHECKING:
    from nsqx.pipeline.replay import ReplayResult

PROGRAM = "nsqx replay"

FLAGS: tuple[Flag, ...] = (
    Flag("to", STRING, "", "`topic` to publish to"),
    Flag(
        "where",
        STRING,
        "",
        "SQL condition over value, text, topic, id, timestamp, attempts, node, such as \"text LIKE '%error%'\"",
    ),
    Flag(
        "from",
        STRING,
        "",
        "`time` from which messages are published again: 2026-11-15, 2026-11-15T11:30 (UTC), or 2h (ago)",
        config_key="from_",
    ),
    Flag("until", STRING, "", "`time` until which messages are published again, exclusive"),
    Flag("rate", INT, 0, "maximum messages per second; 0 for no limit"),
    Flag("after", STRING, "", "`key` printed by an interrupted replay: continue after it"),
    Flag("dry-run", BOOL, False, "print the number of messages and exit"),
    *CLUSTER_FLAGS,
    Flag("verbose", BOOL, False, "show Spark's log"),
)


@dataclass(slots=True)
class ReplayOptions:
    """The options of nsqx replay."""

    directory: str
    to: str = ""
    where: str = ""
    from_: str = ""
    until: str = ""
    rate: int = 0
    after: str = ""
    dry_run: bool = False
    master: str = ""
    context: str = ""
    lookupd: list[str] = field(default_factory=list)
    client_options: list[str] = field(default_factory=list)
    nsqd: list[str] = field(default_factory=list)
    set: list[str] = field(default_factory=list)
    verbose: bool = False


def read_options(argv: Sequence[str]) -> ReplayOptions:
    """Return the options from the command line; raises UsageError or ConfigError."""
    values, words = read_words(FLAGS, argv, f"{PROGRAM} DIR --to TOPIC", least=1, most=1)
    options = ReplayOptions(words[0], **values)
    if not options.to and not options.dry_run:
        raise ConfigError("--to TOPIC is required")
    if options.to and not is_valid_name(options.to):
        raise ConfigError(invalid_name("topic", options.to))
    if options.rate < 0:
        raise ConfigError("--rate must not be negative")
    if "://" not in options.directory and not os.path.exists(options.directory):
        raise ConfigError(f"directory {options.directory} does not exist")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Replay; return 0 if every message was published."""
    try:
        words = list(sys.argv[1:] if argv is None else argv)
        options = read_options(words)
        check_packages()
        with stop_signals() as stopping:
            return run(options, words, stopping)
    except UsageError as error:
        return error.show()
    except NSQError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 1


def run(options: ReplayOptions, argv: Sequence[str], stopping: threading.Event) -> int:
    """Select rows and publish them; return the exit code."""
    from nsqx.pipeline.replay import ReplaySelection, parse_time, plan_replay, replay
    from nsqx.pipeline.session import open_session, sink_session

    now = datetime.now(UTC)
    selection = ReplaySelection(
        where=options.where,
        from_=parse_time(options.from_, now) if options.from_ else None,
        until=parse_time(options.until, now) if options.until else None,
        after=options.after,
    )
    settings = dict(text.partition("=")[::2] for text in options.set)
    log = "" if options.verbose else os.path.join(tempfile.gettempdir(), f"nsqx-replay-{os.getpid()}.log")
    with open_session("replay", options.master or None, settings, is_local_state=False, log=log) as spark:
        plan = plan_replay(sink_session(spark, settings), options.directory, selection)
        if options.dry_run or not plan.total:
            print(f"{plan.total:,} messages")
            return 0
        cluster = tcp_cluster(options.context, options.nsqd, options.lookupd)
        place = asyncio.run(cluster.find())
        client = read_option_flags([*cluster.client_options, *options.client_options])
        producer = Producer(
            place.nsqd_addresses,
            lookupd_http_addresses=place.lookupd_addresses,
            publish_timeout=STREAM_PUBLISH_TIMEOUT_S,
            start_timeout=STREAM_PUBLISH_TIMEOUT_S,
            require_connection=True,
            **client,
        )
        with producer, progress_bar(options.to, plan.total) as progress:
            outcome = replay(
                plan.rows.toLocalIterator(prefetchPartitions=True),
                options.to,
                producer,
                rate=options.rate,
                stopping=stopping,
                progress=progress,
            )
    if log and os.path.exists(log):
        os.unlink(log)
    return print_result(outcome, plan.total, options.to, argv)


def print_result(outcome: ReplayResult, total: int, topic: str, argv: Sequence[str]) -> int:
    """Print the result, and the command to continue an incomplete replay; return the exit code."""
    skipped = f", skipped {outcome.skipped:,} without a value" if outcome.skipped else ""
    print(f"published {outcome.published:,} of {total:,} messages to {topic}{skipped}")
    if outcome.is_complete:
        return 0
    if outcome.error:
        print(
            f"{PROGRAM}: {outcome.error}; some messages after the last counted one may have been published too",
            file=sys.stderr,
        )
    words = _without_after(argv)
    if outcome.last_key:
        words += ["--after", outcome.last_key]
    print(f"to continue: {PROGRAM} {shlex.join(words)}")
    return 1


def _without_after(argv: Sequence[str]) -> list[str]:
    words = list(argv)
    for place, word in enumerate(words):
        name, equals, _ = word.partition("=")
        if name in ("-after", "--after"):
            return words[:place] + words[place + (1 if equals else 2) :]
    return words


@contextmanager
def progress_bar(topic: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar if stderr is a terminal; provides a function that adds to the count."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns: Sequence[Any] = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(file=sys.stderr)) as bar:
        task = bar.add_task(f"replay to {topic}", total=total)
        yield lambda count: bar.advance(task, count)


if __name__ == "__main__":
    sys.exit(main())
