"""The nsqx command, which runs all other commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from nsqx.version import NSQ_VERSION, VERSION

# By command: the module with its main(argv), and its description.
COMMANDS = {
    "up": ("nsqx.cli.up", "run a whole cluster in one process"),
    "auth-server": ("nsqx.cli.auth_server", "run a small auth server with tokens from a TOML file"),
    "nsqadmin": ("nsqx.cli.nsqadmin", "run the web page and API of a cluster"),
    "nsqd": ("nsqx.cli.nsqd", "run the broker"),
    "nsqlookupd": ("nsqx.cli.nsqlookupd", "run the directory of brokers"),
    "pub": ("nsqx.cli.pub", "publish messages from arguments or stdin"),
    "sub": ("nsqx.cli.sub", "show the messages of a topic as they arrive"),
    "topics": ("nsqx.cli.topics", "list the topics"),
    "stats": ("nsqx.cli.stats", "show depth and counts of topics and channels"),
    "nsq_stat": ("nsqx.cli.nsq_stat", "print a channel's depth and rates every interval"),
    "nsq_tail": ("nsqx.cli.nsq_tail", "show the messages of topics"),
    "nsq_to_file": ("nsqx.cli.nsq_to_file", "write topics to files"),
    "nsq_to_http": ("nsqx.cli.nsq_to_http", "send a topic's messages as HTTP requests"),
    "nsq_to_nsq": ("nsqx.cli.nsq_to_nsq", "publish the messages of topics to other nsqds"),
    "to_nsq": ("nsqx.cli.to_nsq", "publish stdin"),
    "pipeline": ("nsqx.cli.pipeline", "run a data pipeline on Spark from a TOML file"),
    "archive": ("nsqx.cli.archive", "write topics to Parquet files, exactly once"),
    "replay": ("nsqx.cli.replay", "publish the messages of an archive again"),
    "bench": ("nsqx.cli.bench", "measure a broker, or compare two"),
    "doctor": ("nsqx.cli.doctor", "check and repair a data directory"),
    "completion": ("nsqx.cli.completion", "print a completion script for bash or zsh"),
}


def usage() -> str:
    """Return the list of commands."""
    lines = [f"  {name:<12}{what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join(["usage: nsqx COMMAND [FLAGS]", "", *lines, "", "nsqx COMMAND -help lists its flags."])


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code."""
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
