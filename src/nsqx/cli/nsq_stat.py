"""The nsq_stat command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from nsqx.cli.run_tool import run_utility
from nsqx.tools.nsq_stat import PROGRAM, read_options, run


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsq_stat; return the exit code."""
    return run_utility(PROGRAM, argv, read_options, run)


if __name__ == "__main__":
    sys.exit(main())
