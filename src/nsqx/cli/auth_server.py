"""The nsqx auth-server command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from nsqx.cli.run_daemon import run_daemon
from nsqx.tools.auth_server import AuthServer, options_from_argv


def main(argv: Sequence[str] | None = None) -> int:
    """Run the auth server until SIGINT or SIGTERM; return the exit code."""
    return run_daemon("auth-server", argv, options_from_argv, AuthServer)


if __name__ == "__main__":
    sys.exit(main())
