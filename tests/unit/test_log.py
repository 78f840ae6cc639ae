"""Log lines of the daemons."""

import io
import re
import sys

import pytest

from nsqx import log
from nsqx.log import Log, parse_level

LINE = re.compile(r"\[nsqd\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} (.*)\n", re.DOTALL)


def written(stream: io.StringIO) -> str:
    """Return the level and the text of the only line in ``stream``."""
    match = LINE.fullmatch(stream.getvalue())
    assert match is not None, stream.getvalue()
    return match.group(1)


@pytest.mark.parametrize(
    ("method", "name"),
    [("debug", "DEBUG"), ("info", "INFO"), ("warn", "WARNING"), ("error", "ERROR"), ("fatal", "FATAL")],
)
def test_a_line_has_the_format_of_nsqd(method, name):
    stream = io.StringIO()
    getattr(Log("[nsqd] ", log.DEBUG, stream), method)("TCP: listening on %s", "127.0.0.1:4150")
    assert written(stream) == f"{name}: TCP: listening on 127.0.0.1:4150"


def test_the_time_is_local(monkeypatch):
    class Noon(log.datetime):
        @classmethod
        def now(cls, tz=None):
            assert tz is None
            return cls(2026, 11, 5, 8, 7, 1, 42)

    monkeypatch.setattr(log, "datetime", Noon)
    stream = io.StringIO()
    Log("[nsqd] ", log.INFO, stream).info("x")
    assert stream.getvalue() == "[nsqd] 2026/11/05 08:07:01.000042 INFO: x\n"


@pytest.mark.parametrize("level", range(1, 6))
def test_only_lines_of_the_level_and_above_are_written(level):
    stream = io.StringIO()
    logger = Log("", level, stream)
    for method in ("debug", "info", "warn", "error", "fatal"):
        getattr(logger, method)("x")
    assert len(stream.getvalue().splitlines()) == 6 - level


def test_the_level_can_change_at_any_time():
    stream = io.StringIO()
    logger = Log("[nsqd] ", log.ERROR, stream)
    logger.info("before")
    logger.level = log.INFO
    logger.info("after")
    assert written(stream) == "INFO: after"


def test_a_line_that_is_not_written_is_not_formatted():
    class Unprintable:
        def __str__(self):
            raise AssertionError("formatted")

    Log("", log.INFO, io.StringIO()).debug("%s", Unprintable())


def test_text_without_arguments_can_contain_percent_signs():
    stream = io.StringIO()
    Log("[nsqd] ", log.INFO, stream).info("100%s")
    assert written(stream) == "INFO: 100%s"


def test_a_final_newline_is_not_doubled():
    stream = io.StringIO()
    Log("[nsqd] ", log.INFO, stream).info("x\n")
    assert written(stream) == "INFO: x"


def test_control_characters_in_arguments_are_escaped():
    stream = io.StringIO()
    Log("[nsqd] ", log.INFO, stream).error("lookupd returned %s", "E_BAD\n[nsqd] FATAL: \x1b[2Jhello é")
    assert written(stream) == "ERROR: lookupd returned E_BAD\\n[nsqd] FATAL: \\x1b[2Jhello é"


def test_the_default_is_the_current_stderr(monkeypatch):
    logger = Log("[nsqd] ", log.INFO)
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    logger.info("x")
    assert written(stream) == "INFO: x"


def test_a_closed_stream_is_ignored():
    stream = io.StringIO()
    stream.close()
    Log("", log.INFO, stream).info("x")


def test_a_broken_pipe_is_ignored():
    class Broken(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    Log("", log.INFO, Broken()).info("x")


def test_a_missing_stderr_is_ignored(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    Log("", log.INFO).info("x")


@pytest.mark.parametrize(
    ("text", "level"),
    [("debug", 1), ("info", 2), ("warn", 3), ("error", 4), ("fatal", 5), ("WARN", 3), ("Debug", 1)],
)
def test_parse_level(text, level):
    assert parse_level(text) == level


@pytest.mark.parametrize("text", ["", "warning", "3", " info"])
def test_parse_level_rejects(text):
    with pytest.raises(ValueError) as caught:
        parse_level(text)
    assert str(caught.value) == f"invalid log level '{text}' (debug, info, warn, error, fatal)"
