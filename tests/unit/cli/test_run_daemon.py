"""Daemon commands handle options, signals and errors, and return the expected exit codes."""

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
from nsqx.version import own_version_line, version_line


@dataclass
class Options:
    log_prefix: str = "[x] "
    log_level: int = INFO


class DaemonStandIn:
    """A daemon that sends its own process a signal when it starts, and records the calls."""

    def __init__(self, signal_number=signal.SIGTERM, failure=None):
        self.events = []
        self._signal_number = signal_number
        self._failure = failure

    def make(self, options, log):
        asyncio.get_running_loop()
        self.events.append(("made", options.log_prefix, log.prefix))
        return self

    async def start(self):
        if self._failure is not None:
            raise self._failure
        self.events.append("started")
        os.kill(os.getpid(), self._signal_number)

    async def stop(self):
        self.events.append("stopped")


def no_daemon(_options, _log):
    pytest.fail("no daemon must be created")


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_a_daemon_serves_until_a_signal(signal_number, capsys):
    daemon = DaemonStandIn(signal_number)
    assert run_daemon("prog", ["-a"], lambda argv, _: Options(f"{argv} "), daemon.make) == 0
    assert daemon.events == [("made", "['-a'] ", "['-a'] "), "started", "stopped"]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("failure", [ConfigError("no such thing"), OSError("no such thing")])
def test_a_failed_start_is_logged_and_exits_with_status_1(failure, capsys):
    daemon = DaemonStandIn(failure=failure)
    assert run_daemon("prog", [], lambda *_: Options(log_level=ERROR), daemon.make) == 1
    assert capsys.readouterr().err.endswith(" FATAL: failed to instantiate prog - no such thing\n")
    assert "stopped" not in daemon.events


@pytest.mark.parametrize(
    ("raised", "code", "out", "err"),
    [
        (UsageError("bad flag\nUsage of prog:\n", 2), 2, "", "bad flag\nUsage of prog:\n"),
        (VersionRequested(), 0, f"{version_line('prog')}\n{own_version_line('prog')}\n", ""),
    ],
)
def test_usage_errors_and_version_requests_start_no_daemon(raised, code, out, err, capsys):
    def read_options(_argv, _stderr):
        raise raised

    assert run_daemon("prog", [], read_options, no_daemon) == code
    assert capsys.readouterr() == (out, err)


def test_a_configuration_error_is_logged_and_exits_with_status_1(capsys):
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
