"""The table of all commands: what each one runs, and its description.

A program of its own name, such as nsqd, has the entry point ``nsqx.cli.commands:nsqd``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nsqx.flags import Flag


class MissingPackage(Exception):
    """A package that a command needs is not installed."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command."""

    module: str
    """The module with the command's FLAGS, or ``module:object``. Unless the command is a daemon, it also has ``main``,
    or ``read_options`` and ``run``."""
    about: str
    daemon: str = ""
    """``module:class`` of a daemon, whose options ``options_from_argv`` of the first module reads."""
    is_program: bool = False
    """True if the command is also installed under its own name."""
    extras: tuple[str, ...] = ()
    """The extras of the package that the command needs."""
    group: str = ""
    """The heading in the list of commands; empty for that of the command before."""

    @property
    def flags(self) -> Sequence[Flag]:
        """The command's flags; empty if one of its packages is not installed."""
        flags: Sequence[Flag] = self._table("FLAGS")
        return flags

    @property
    def verbs(self) -> Sequence[str]:
        """The words that the command may begin with; empty if it takes other words."""
        verbs: Sequence[str] = self._table("VERBS")
        return verbs

    def _table(self, name: str) -> Any:
        try:
            return getattr(self._load(self.module), name, ())
        except MissingPackage:
            return ()

    def run(self, name: str, argv: Sequence[str] | None) -> int:
        """Run the command with ``argv``, or with the arguments of the process; return the exit code."""
        # Imported here, so the list of commands is printed without loading asyncio.
        from nsqx.cli.run_daemon import run_daemon
        from nsqx.cli.run_tool import run_utility

        try:
            module = self._load(self.module)
            daemon = self._daemon_class() if self.daemon else None
        except MissingPackage:
            program = name if self.is_program else f"nsqx {name}"
            noun = "extra" if len(self.extras) == 1 else "extras"
            names = " and ".join(self.extras)
            print(f"{program} needs the {noun} {names}: pip install 'nsqx[{','.join(self.extras)}]'", file=sys.stderr)
            return 1
        if daemon is not None:
            return run_daemon(name, argv, module.options_from_argv, daemon)
        if hasattr(module, "main"):
            code: int = module.main(argv)
            return code
        return run_utility(module.PROGRAM, argv, module.read_options, module.run)

    def _daemon_class(self) -> Any:
        return self._load(self.daemon)

    def _load(self, place: str) -> Any:
        """Return a module or ``module:object``; raises MissingPackage if a package of an extra is not installed."""
        module, _, name = place.partition(":")
        try:
            found = import_module(module)
            return getattr(found, name) if name else found
        except ModuleNotFoundError as error:
            if not self.extras or error.name is None or error.name.partition(".")[0] == "nsqx":
                raise
            raise MissingPackage(error.name) from None


COMMANDS = {
    # The first command of each group names the group.
    "up": Command(
        "nsqx.cli.up", "run a whole cluster in one process", extras=("admin", "server"), group="Run a cluster"
    ),
    "nsqd": Command(
        "nsqx.nsqd.options", "run the broker", daemon="nsqx.nsqd.daemon:NsqdDaemon", is_program=True, extras=("server",)
    ),
    "nsqlookupd": Command(
        "nsqx.nsqlookupd.options",
        "run the directory of brokers",
        daemon="nsqx.nsqlookupd.daemon:NsqlookupdDaemon",
        is_program=True,
        extras=("server",),
    ),
    "nsqadmin": Command(
        "nsqx.nsqadmin.options",
        "run the web page and API of a cluster",
        daemon="nsqx.nsqadmin.daemon:NsqadminDaemon",
        is_program=True,
        extras=("admin",),
    ),
    "auth-server": Command(
        "nsqx.tools.auth_server",
        "run a small auth server with tokens from a TOML file",
        daemon="nsqx.tools.auth_server:AuthServer",
    ),
    "pub": Command("nsqx.cli.pub", "publish messages from arguments or stdin", group="Publish and consume"),
    "sub": Command("nsqx.cli.sub", "show the messages of a topic as they arrive"),
    "peek": Command("nsqx.cli.peek", "show messages without consuming them"),
    "top": Command("nsqx.cli.top", "show rates and backlogs, redrawn in place", group="Watch a cluster"),
    "stats": Command("nsqx.cli.stats", "show depth and counts of topics and channels"),
    "topics": Command("nsqx.cli.topics", "list the topics"),
    "channels": Command("nsqx.cli.channels", "list the channels with their backlogs"),
    "clients": Command("nsqx.cli.clients", "list the consumers and producers"),
    "nodes": Command("nsqx.cli.nodes", "list the nsqds with their versions and counts"),
    "create": Command("nsqx.cli.changes:CREATE", "create a topic or a channel", group="Change a cluster"),
    "pause": Command("nsqx.cli.changes:PAUSE", "stop the deliveries of a topic or a channel"),
    "unpause": Command("nsqx.cli.changes:UNPAUSE", "continue the deliveries of a topic or a channel"),
    "empty": Command("nsqx.cli.changes:EMPTY", "discard the messages of a topic or a channel"),
    "delete": Command("nsqx.cli.changes:DELETE", "delete a topic or a channel"),
    "move": Command("nsqx.cli.move", "move messages of a channel or a topic to another topic"),
    "seek": Command("nsqx.cli.seek", "move a channel to an offset or a time"),
    "dlq": Command("nsqx.cli.dlq", "list, show, redrive or purge dead letters"),
    "config": Command("nsqx.cli.config", "show or change the settings of a topic or a channel"),
    "drain": Command("nsqx.cli.drain", "empty an nsqd before it is removed"),
    "undrain": Command("nsqx.cli.undrain", "end a drain"),
    "pipeline": Command(
        "nsqx.cli.pipeline", "run a data pipeline on Spark from a TOML file", extras=("spark",), group="Spark"
    ),
    "archive": Command("nsqx.cli.archive", "write topics to Parquet files, exactly once", extras=("spark",)),
    "replay": Command("nsqx.cli.replay", "publish the messages of an archive again", extras=("spark",)),
    "doctor": Command(
        "nsqx.cli.doctor", "check and repair a data directory", extras=("server",), group="Files and measurements"
    ),
    "log": Command("nsqx.cli.log", "list, show, verify, export or trim topic logs", extras=("server",)),
    "bench": Command("nsqx.cli.bench", "measure a broker, or compare two"),
    "context": Command("nsqx.cli.context", "name clusters, and choose the one to use", group="This command line"),
    "completion": Command("nsqx.cli.completion", "print a completion script for bash, zsh or fish"),
    "nsq_stat": Command(
        "nsqx.tools.nsq_stat",
        "print a channel's depth and rates every interval",
        is_program=True,
        group="Utilities of NSQ, with the flags of Go",
    ),
    "nsq_tail": Command("nsqx.tools.nsq_tail", "show the messages of topics", is_program=True),
    "nsq_to_file": Command("nsqx.tools.nsq_to_file", "write topics to files", is_program=True, extras=("server",)),
    "nsq_to_http": Command("nsqx.tools.nsq_to_http", "send a topic's messages as HTTP requests", is_program=True),
    "nsq_to_nsq": Command("nsqx.tools.nsq_to_nsq", "publish the messages of topics to other nsqds", is_program=True),
    "to_nsq": Command("nsqx.tools.to_nsq", "publish stdin", is_program=True),
}

HIDDEN_COMMANDS = {"__complete": Command("nsqx.cli.complete", "print completions, for the completion scripts")}


def __getattr__(name: str) -> Callable[[], int]:
    """Return the entry point of the program ``name``."""
    command = COMMANDS.get(name)
    if command is None or not command.is_program:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return partial(command.run, name, None)
