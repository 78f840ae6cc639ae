"""A request as its handler sees it, and the ways to answer it.

A handler is called with a Request and returns a Response, a StreamedResponse, an awaitable of one of them, or DEFERRED.
After DEFERRED, ``request.respond`` must be called once. A request uses its connection only to send the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from ssl import SSLObject
    from typing import TypeAlias

    from nsqx.net.http_head import Head
    from nsqx.net.responses import Response, StreamedResponse

    AnyResponse: TypeAlias = "Response | StreamedResponse"
    Answer: TypeAlias = "AnyResponse | DeferredAnswer | Awaitable[AnyResponse]"
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
    """The connection of a request."""

    remote: str
    tls: SSLObject | None

    def answered(self, request: Request) -> None: ...


class Request:
    """One request. Its body is complete before a handler is called."""

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
    remote: str  # the peer in Go's form: 127.0.0.1:4151, [::1]:4151, or @ for a unix socket
    tls: SSLObject | None
    response: AnyResponse | None
    # Set by the connection: an answer that needs no handler, whether to close after the answer, the next request, and
    # the start time if the request is logged.
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
        """The unescaped path."""
        return self.head.path

    @property
    def raw_query(self) -> bytes:
        return self.head.raw_query

    @property
    def query(self) -> Mapping[str, str]:
        """The first value of each query parameter; raises HTTPError 400 INVALID_REQUEST if the query is malformed."""
        return self.head.query()

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        """Headers by lower-case name; the first value of a repeated header."""
        return self.head.headers

    @property
    def params(self) -> Mapping[str, str]:
        """The values of the route's ``:name`` parts."""
        return self.head.params

    def respond(self, response: AnyResponse) -> None:
        """Answer the request; call it once. No-op if the client has disconnected."""
        assert self.response is None, "a request was answered twice"
        self.response = response
        connection = self._connection
        if connection is not None:
            connection.answered(self)

    def detach(self) -> None:
        """Drop the reference to the connection, after the answer is sent or the client has disconnected."""
        self._connection = None
        self.following = None
