"""How daemon commands run: options, exit codes, signals, and what goes wrong inside."""

import asyncio
import io
import os
import signal
from dataclasses import dataclass

import pytest

from nsqx.cli.run_daemon import log_exceptions, run_daemon
from nsqx.errors import ConfigError
from nsqx.flags import UsageError, VersionRequested
from nsqx.log import ERROR, INFO, Log
from nsqx.version import version_line


@dataclass
class Options:
    log_prefix: str = "[x] "
    log_level: int = INFO


class DaemonStandIn:
    """Ends its own process by a signal as soon as it serves; notes what is done to it."""

    def __init__(self, number=signal.SIGTERM, failure=None):
        self.done = []
        self._number = number
        self._failure = failure

    def make(self, options, log):
        asyncio.get_running_loop()
        self.done.append(("made", options.log_prefix, log.prefix))
        return self

    async def start(self):
        if self._failure is not None:
            raise self._failure
        self.done.append("started")
        os.kill(os.getpid(), self._number)

    async def stop(self):
        self.done.append("stopped")


def no_daemon(_options, _log):
    pytest.fail("no daemon should be made")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serves_until_a_signal(number, capsys):
    daemon = DaemonStandIn(number)
    assert run_daemon("prog", ["-a"], lambda argv, _: Options(f"{argv} "), daemon.make) == 0
    assert daemon.done == [("made", "['-a'] ", "['-a'] "), "started", "stopped"]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("failure", [ConfigError("no such thing"), OSError("no such thing")])
def test_failed_start(failure, capsys):
    daemon = DaemonStandIn(failure=failure)
    assert run_daemon("prog", [], lambda *_: Options(log_level=ERROR), daemon.make) == 1
    assert capsys.readouterr().err.endswith(" FATAL: failed to instantiate prog - no such thing\n")
    assert "stopped" not in daemon.done


@pytest.mark.parametrize(
    ("asked", "code", "out", "err"),
    [
        (UsageError("bad flag\nUsage of prog:\n", 2), 2, "", "bad flag\nUsage of prog:\n"),
        (VersionRequested(), 0, version_line("prog") + "\n", ""),
    ],
)
def test_ends_before_it_begins(asked, code, out, err, capsys):
    def read_options(_argv, _stderr):
        raise asked

    assert run_daemon("prog", [], read_options, no_daemon) == code
    assert capsys.readouterr() == (out, err)


def test_bad_configuration(capsys):
    def read_options(_argv, _stderr):
        raise ConfigError("failed to load config file")

    assert run_daemon("prog", [], read_options, no_daemon) == 1
    line = capsys.readouterr().err
    assert line.startswith("[prog] ")
    assert line.endswith(" FATAL: failed to load config file\n")


async def test_exceptions_of_callbacks_are_logged():
    stream = io.StringIO()
    log_exceptions(Log("", INFO, stream))

    def fail():
        raise ZeroDivisionError("boom")

    loop = asyncio.get_running_loop()
    loop.call_soon(fail)
    await asyncio.sleep(0)
    loop.set_exception_handler(None)
    assert "ERROR: internal error - " in stream.getvalue()
    assert "ZeroDivisionError('boom') in " in stream.getvalue()
    assert stream.getvalue().count("\n") == 1
