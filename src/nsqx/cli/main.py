"""The nsqx command, which runs all other commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from nsqx.cli.commands import COMMANDS
from nsqx.version import NSQ_VERSION, VERSION


def usage() -> str:
    """Return the list of commands."""
    lines = [f"  {name:<12}{command.about}" for name, command in COMMANDS.items()]
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
    return command.run(words[0], words[1:])


if __name__ == "__main__":
    sys.exit(main())
