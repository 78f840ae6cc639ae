"""The nsqx command: one word for each thing it does."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from nsqx.version import NSQ_VERSION, VERSION

# Command, module with a main(argv), what it does.
COMMANDS = {
    "up": ("nsqx.cli.up", "run a whole cluster in one process"),
    "auth-server": ("nsqx.cli.auth_server", "a small auth server, its tokens and rights in a TOML file"),
    "nsqadmin": ("nsqx.cli.nsqadmin", "the page and API over a cluster, as the nsqadmin command"),
    "nsqd": ("nsqx.cli.nsqd", "the broker, as the nsqd command"),
    "nsqlookupd": ("nsqx.cli.nsqlookupd", "the directory of brokers, as the nsqlookupd command"),
    "pub": ("nsqx.cli.pub", "publish messages: words, or the lines of stdin"),
    "sub": ("nsqx.cli.sub", "show the messages of a topic as they come"),
    "topics": ("nsqx.cli.topics", "list the topics"),
    "stats": ("nsqx.cli.stats", "depth and counts of topics and channels"),
    "nsq_stat": ("nsqx.cli.nsq_stat", "a channel's depth and rates, a line each interval"),
    "nsq_tail": ("nsqx.cli.nsq_tail", "show the messages of topics"),
    "nsq_to_file": ("nsqx.cli.nsq_to_file", "write topics to files"),
    "nsq_to_http": ("nsqx.cli.nsq_to_http", "make HTTP requests of a topic's messages"),
    "nsq_to_nsq": ("nsqx.cli.nsq_to_nsq", "publish topics again elsewhere"),
    "to_nsq": ("nsqx.cli.to_nsq", "publish what comes on stdin"),
    "pipeline": ("nsqx.cli.pipeline", "run a data pipeline on Spark from a TOML file"),
    "archive": ("nsqx.cli.archive", "keep a topic as Parquet files, exactly once"),
    "replay": ("nsqx.cli.replay", "publish an archive again"),
    "bench": ("nsqx.cli.bench", "load a broker and measure it, or compare two"),
    "doctor": ("nsqx.cli.doctor", "check a data directory, explain and repair"),
    "completion": ("nsqx.cli.completion", "a script for bash or zsh that completes all this"),
}


def usage() -> str:
    """What there is."""
    lines = [f"  {name:<12}{what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join(["usage: nsqx COMMAND [FLAGS]", "", *lines, "", "nsqx COMMAND -help lists its flags."])


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("help", "-h", "-help", "--help"):
        print(usage(), file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    if words[0] in ("version", "-version", "--version"):
        print(f"nsqx v{VERSION} (NSQ v{NSQ_VERSION})")
        return 0
    command = COMMANDS.get(words[0])
    if command is None:
        print(f"nsqx: unknown command {words[0]!r}\n\n{usage()}", file=sys.stderr)
        return 2
    code: int = import_module(command[0]).main(words[1:])
    return code


if __name__ == "__main__":
    sys.exit(main())
