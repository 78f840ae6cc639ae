"""Runs a daemon: reads the options, serves until a signal, and reports errors."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TextIO, TypeVar, runtime_checkable

from nsqx.errors import MessagesLost, NSQError
from nsqx.flags import UsageError, VersionRequested
from nsqx.log import INFO, Log
from nsqx.version import own_version_line, version_line


class RunnableDaemon(Protocol):
    """A daemon that can be started and stopped in an event loop."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


@runtime_checkable
class Reloadable(Protocol):
    """A daemon that reloads its certificate on SIGHUP."""

    def reload_certificate(self) -> None: ...


class LoggedOptions(Protocol):
    """Options of a daemon that logs."""

    log_prefix: str
    log_level: int


_Options = TypeVar("_Options", bound=LoggedOptions)


def run_daemon(
    program: str,
    argv: Sequence[str] | None,
    read_options: Callable[[Sequence[str], TextIO], _Options],
    make_daemon: Callable[[_Options, Log], RunnableDaemon],
) -> int:
    """Run a daemon until SIGINT or SIGTERM and return the exit code; ``make_daemon`` is called in the event loop."""
    try:
        options = read_options(sys.argv[1:] if argv is None else argv, sys.stderr)
    except UsageError as error:
        return error.show()
    except VersionRequested:
        print(version_line(program))
        print(own_version_line(program))
        return 0
    except NSQError as error:
        Log(f"[{program}] ", INFO).fatal("%s", error)
        return 1
    log = Log(options.log_prefix, options.log_level)
    try:
        return run_in_loop(_serve(lambda: make_daemon(options, log), log))
    except (NSQError, OSError) as error:
        Log(f"[{program}] ", INFO).fatal("failed to instantiate %s - %s", program, error)
        return 1


def run_in_loop(main_coroutine: Coroutine[Any, Any, int]) -> int:
    """Run a coroutine on uvloop if it is installed; return its result."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main_coroutine)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main_coroutine)


async def _serve(make_daemon: Callable[[], RunnableDaemon], log: Log) -> int:
    stopped = stop_event()
    log_exceptions(log)
    daemon = make_daemon()
    if isinstance(daemon, Reloadable):
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, daemon.reload_certificate)
    await daemon.start()
    await stopped.wait()
    try:
        await daemon.stop()
    except MessagesLost as error:
        log.fatal("%s", error)
        return 1
    return 0


def stop_event() -> asyncio.Event:
    """Return an event that SIGINT and SIGTERM set."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    return stopped


def log_exceptions(log: Log) -> None:
    """Log exceptions of callbacks and of tasks that are not awaited; the daemon continues."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: log.error("internal error - %s", _explain(context)))


def _explain(context: dict[str, Any]) -> str:
    error = context.get("exception")
    where = ""
    if error is not None and error.__traceback__ is not None:
        last = error.__traceback__
        while last.tb_next is not None:
            last = last.tb_next
        where = f" in {last.tb_frame.f_code.co_qualname}, line {last.tb_lineno}"
    return f"{context.get('message', '')}: {error!r}{where}"
