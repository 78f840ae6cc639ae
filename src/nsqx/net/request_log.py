"""The log lines for a request, and the interface of the log."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Protocol

from nsqx.gotext import format_duration

if TYPE_CHECKING:
    from nsqx.net.requests import Request


class RequestLog(Protocol):
    """The log of a server. ``text`` is complete: percent signs in it have no meaning."""

    @property
    def info_enabled(self) -> bool:
        """False if INFO lines are dropped, so that they need not be built."""

    def error(self, text: str) -> None: ...
    def warn(self, text: str) -> None: ...
    def info(self, text: str) -> None: ...
    def debug(self, text: str) -> None: ...


def request_line(request: Request, elapsed_ns: int) -> str:
    """Return a line in nsqd's form: ``200 GET /ping (127.0.0.1:1234) 12µs``."""
    assert request.response is not None, "a request is logged when it has been answered"
    head = request.head
    uri = head.target.decode("ascii", "backslashreplace")
    return f"{request.response.status} {head.method} {uri} ({request.remote}) {format_duration(elapsed_ns)}"


def failure_line(request: Request, error: BaseException) -> str:
    """Return one line with the error of a handler and its location."""
    where = ""
    frames = traceback.extract_tb(error.__traceback__)
    if frames:
        where = f" at {frames[-1].filename}:{frames[-1].lineno}"
    text = f"panic in HTTP handler - {request.method} {request.path!r}: {type(error).__name__}: {error}{where}"
    return " ".join(text.split())
