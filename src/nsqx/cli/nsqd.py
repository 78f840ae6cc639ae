"""The nsqd command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from nsqx.cli.run_daemon import run_daemon
from nsqx.nsqd.daemon import NsqdDaemon
from nsqx.nsqd.options import options_from_argv


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsqd until SIGINT or SIGTERM; return the exit code."""
    return run_daemon("nsqd", argv, options_from_argv, NsqdDaemon)


if __name__ == "__main__":
    sys.exit(main())
