"""The nsqx command, which runs all other commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from nsqx.cli.commands import COMMANDS, HIDDEN_COMMANDS
from nsqx.version import own_version_line

_HELP = ("help", "-h", "-help", "--help")


def usage() -> str:
    """Return the list of commands, by groups."""
    lines = ["usage: nsqx COMMAND [ARGUMENTS] [FLAGS]"]
    for name, command in COMMANDS.items():
        if command.group:
            lines += ["", command.group]
        lines.append(f"  {name:<13}{command.about}")
    lines += ["", "nsqx help COMMAND shows examples and flags."]
    return "".join(f"{line}\n" for line in lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words:
        sys.stderr.write(usage())
        return 2
    if words[0] in _HELP:
        if len(words) == 1:
            sys.stdout.write(usage())
            return 0
        words = [words[1], "--help"]
    if words[0] in ("version", "-version", "--version"):
        print(own_version_line("NSQ"))
        return 0
    command = COMMANDS.get(words[0]) or HIDDEN_COMMANDS.get(words[0])
    if command is None:
        # Imported here, because only mistakes need it.
        from nsqx.cli.did_you_mean import did_you_mean

        text = f'nsqx: unknown command "{words[0]}"{did_you_mean(words[0], COMMANDS)}'
        print(f"{text}\nnsqx help lists the commands", file=sys.stderr)
        return 2
    return command.run(words[0], words[1:])


if __name__ == "__main__":
    sys.exit(main())
