"""The nsqlookupd command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from nsqx.cli.run_daemon import run_daemon
from nsqx.nsqlookupd.daemon import NsqlookupdDaemon
from nsqx.nsqlookupd.options import options_from_argv


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsqlookupd until SIGINT or SIGTERM; return the exit code."""
    return run_daemon("nsqlookupd", argv, options_from_argv, NsqlookupdDaemon)


if __name__ == "__main__":
    sys.exit(main())
