"""Runs a utility: reads the flags, works until it is done or a signal arrives, and reports errors."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from nsqx.cli.run_daemon import run_in_loop, stop_event
from nsqx.errors import NSQError
from nsqx.flags import UsageError, VersionRequested
from nsqx.tools.utility import LINE_STYLE, client_log, error_line
from nsqx.version import NSQ_VERSION

_Options = TypeVar("_Options")


def run_utility(
    program: str,
    argv: Sequence[str] | None,
    read_options: Callable[[Sequence[str]], _Options],
    run: Callable[[_Options, asyncio.Event], Awaitable[int]],
) -> int:
    """Run a utility and return the exit code; ``run`` gets an event that SIGINT and SIGTERM set."""
    LINE_STYLE.program = program if program.startswith("nsqx ") else ""
    try:
        options = read_options(sys.argv[1:] if argv is None else argv)
    except UsageError as error:
        return error.show()
    except VersionRequested:
        print(f"{program} v{NSQ_VERSION}")
        return 0
    except NSQError as error:
        error_line(error)
        return 1

    async def work() -> int:
        return await run(options, stop_event())

    try:
        with client_log():
            return run_in_loop(work())
    except BrokenPipeError:
        return _end_by_broken_pipe()
    except NSQError as error:
        error_line(error)
        return 1


def _end_by_broken_pipe() -> int:
    """End silently by SIGPIPE, like other programs whose output is closed (``nsq_tail | head``)."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGPIPE)
    return 1
