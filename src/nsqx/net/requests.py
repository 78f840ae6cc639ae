"""A request as a handler sees it, and the ways to answer it.

A handler is called with a Request and returns a Response; or an awaitable of one; or DEFERRED, after which someone
calls ``request.respond`` once. Knows nothing of parsing, and of its connection only where answers go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from ssl import SSLObject
    from typing import TypeAlias

    from nsqx.net.http_head import Head
    from nsqx.net.responses import Response

    Answer: TypeAlias = "Response | DeferredAnswer | Awaitable[Response]"
    Handler: TypeAlias = "Callable[[Request], Answer]"
    Gate: TypeAlias = "Callable[[Request], Response | None]"


@final
class DeferredAnswer:
    """The type of DEFERRED."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "DEFERRED"


DEFERRED: Final = DeferredAnswer()


class Answerable(Protocol):
    """The connection that a request came by."""

    remote: str
    tls: SSLObject | None

    def answered(self, request: Request) -> None: ...


class Request:
    """One request. Its body is whole before a handler sees it."""

    __slots__ = (
        "_connection",
        "answer",
        "body",
        "final",
        "following",
        "head",
        "remote",
        "response",
        "started_ns",
        "tls",
    )

    head: Head
    body: bytes
    remote: str  # the peer as Go writes it: 127.0.0.1:4151, [::1]:4151, or @ on a unix socket
    tls: SSLObject | None
    response: Response | None
    # The connection's own notes: an answer that needs no handler, whether it closes after the answer, which request
    # came next, when work on this one began if that is to be logged.
    answer: Response | None
    final: bool
    following: Request | None
    started_ns: int

    def __init__(self, connection: Answerable, head: Head) -> None:
        self._connection: Answerable | None = connection
        self.head = head
        self.body = b""
        self.remote = connection.remote
        self.tls = connection.tls
        self.response = None
        self.answer = None
        self.final = False
        self.following = None
        self.started_ns = 0

    @property
    def method(self) -> str:
        return self.head.method

    @property
    def path(self) -> str:
        """The path without escapes."""
        return self.head.path

    @property
    def raw_query(self) -> bytes:
        return self.head.raw_query

    @property
    def query(self) -> Mapping[str, str]:
        """The first value of each query parameter; HTTPError 400 INVALID_REQUEST if the query is malformed."""
        return self.head.query()

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        """Headers by lower-case name; of a repeated one the first."""
        return self.head.headers

    @property
    def params(self) -> Mapping[str, str]:
        """What stood in the path where the route has ``:name``."""
        return self.head.params

    def respond(self, response: Response) -> None:
        """Answers, once. If the client has gone meanwhile nothing happens."""
        assert self.response is None, "a request was answered twice"
        self.response = response
        connection = self._connection
        if connection is not None:
            connection.answered(self)

    def detach(self) -> None:
        """Ends the tie to the connection: the answer is sent, or nobody is left to read it."""
        self._connection = None
        self.following = None
