"""The line that nsqd logs for a request, and the log it goes to."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Protocol

from nsqx.gotext import format_duration

if TYPE_CHECKING:
    from nsqx.net.requests import Request


class RequestLog(Protocol):
    """Where a server reports. ``text`` is complete: it may hold percent signs that mean themselves."""

    @property
    def info_enabled(self) -> bool:
        """False if INFO lines would be dropped, so that none need be made."""

    def error(self, text: str) -> None: ...
    def warn(self, text: str) -> None: ...
    def info(self, text: str) -> None: ...
    def debug(self, text: str) -> None: ...


def request_line(request: Request, elapsed_ns: int) -> str:
    """``200 GET /ping (127.0.0.1:1234) 12µs``, as nsqd writes it."""
    assert request.response is not None, "a request is logged when it has been answered"
    head = request.head
    uri = head.target.decode("ascii", "backslashreplace")
    return f"{request.response.status} {head.method} {uri} ({request.remote}) {format_duration(elapsed_ns)}"


def failure_line(request: Request, error: BaseException) -> str:
    """What went wrong in a handler and where, in one line."""
    where = ""
    frames = traceback.extract_tb(error.__traceback__)
    if frames:
        where = f" at {frames[-1].filename}:{frames[-1].lineno}"
    text = f"panic in HTTP handler - {request.method} {request.path!r}: {type(error).__name__}: {error}{where}"
    return " ".join(text.split())
