"""The nsqadmin command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from nsqx.cli.run_daemon import run_daemon
from nsqx.nsqadmin.daemon import NsqadminDaemon
from nsqx.nsqadmin.options import options_from_argv


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsqadmin until SIGINT or SIGTERM; return the exit code."""
    return run_daemon("nsqadmin", argv, options_from_argv, NsqadminDaemon)


if __name__ == "__main__":
    sys.exit(main())
