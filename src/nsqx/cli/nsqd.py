"""The nsqd command."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine, Sequence
from typing import Any

from nsqx.errors import NSQError
from nsqx.flags import UsageError, VersionWanted
from nsqx.log import INFO, Log
from nsqx.nsqd.daemon import Daemon
from nsqx.nsqd.options import Options, options_from_argv
from nsqx.version import version_line


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsqd until it is told to stop; the exit code."""
    try:
        options = options_from_argv(sys.argv[1:] if argv is None else argv, sys.stderr)
    except UsageError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except VersionWanted:
        print(version_line("nsqd"))
        return 0
    except NSQError as error:
        Log("[nsqd] ", INFO).fatal("%s", error)
        return 1
    log = Log(options.log_prefix, options.log_level)
    try:
        return run_in_loop(_serve(options, log))
    except NSQError as error:
        Log("[nsqd] ", INFO).fatal("failed to instantiate nsqd - %s", error)
        return 1


def run_in_loop(main_coroutine: Coroutine[Any, Any, int]) -> int:
    """Run on uvloop where it exists."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main_coroutine)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main_coroutine)


async def _serve(options: Options, log: Log) -> int:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: log.error("internal error - %s", _explain(context)))
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    daemon = Daemon(options, log)
    await daemon.start()
    await stopped.wait()
    await daemon.stop()
    return 0


def _explain(context: dict[str, Any]) -> str:
    error = context.get("exception")
    where = ""
    if error is not None and error.__traceback__ is not None:
        last = error.__traceback__
        while last.tb_next is not None:
            last = last.tb_next
        where = f" in {last.tb_frame.f_code.co_qualname}, line {last.tb_lineno}"
    return f"{context.get('message', '')}: {error!r}{where}"


if __name__ == "__main__":
    sys.exit(main())
