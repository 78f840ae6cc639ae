"""HTTP input: requests to nsqd and nsqlookupd, responses to their HTTP client, responses of auth servers.

A stream of requests must have the same meaning in all divisions into pieces. If h11, a strict parser, also accepts the
stream, the requests must begin and end at the same places. Otherwise request smuggling would be possible.
"""

import re
from typing import Any

import h11
import httptools
import orjson
from mutation import assert_one_line, in_pieces

from http_doubles import RememberingLog, Soon, connect
from nsqx.errors import HTTPError
from nsqx.net.http_client import HTTPRequestFailed, _AnswerReader
from nsqx.net.http_head import parse_query
from nsqx.net.http_server import HTTPServer
from nsqx.net.requests import Request
from nsqx.net.responses import Response, json_response
from nsqx.net.router import BodyLimit, Router
from nsqx.nsqd.grants import InvalidGrants, decode_grants

MAX_BODY_SIZE = 2000
MAX_HEADER_BYTES = 6000
_DATE = re.compile(rb"Date: [^\r]*\r\n")
# If a request has several errors, the pieces decide which one is reported. It must be refused in any case.
_REFUSAL = re.compile(
    rb"HTTP/1\.1 (?:400|431|505) [^\r]*\r\n(?:[^\r]+\r\n)*\r\n"
    rb'\{"message":"(?:BAD_REQUEST|HEADER_TOO_BIG|HTTP_VERSION_NOT_SUPPORTED)"\}'
)
Seen = tuple[str, bytes, bytes]


class Service:
    """A server that records every request that reaches a handler."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.log = RememberingLog()
        router = Router()
        for method in ("GET", "POST", "PUT", "DELETE", "HEAD"):
            router.add(method, "/echo", self.echo, body_limit=BodyLimit(MAX_BODY_SIZE, "TOO_BIG"), logged=False)
            router.add(method, "/config/:option", self.echo, logged=False)
        router.freeze()
        self.server = HTTPServer(router, self.log, max_header_bytes=MAX_HEADER_BYTES)
        self.soon = Soon(self.server)

    def echo(self, request: Request) -> Response:
        self.seen.append((request.method, request.head.target, request.body))
        return json_response(dict(request.query))


def check_http_requests(data: bytes) -> None:
    """Check the input of a server connection."""
    seen, answers = _serve([data])
    assert (seen, answers) == _serve(in_pieces(data))
    _compare_with_h11(seen, _h11_requests(data))


def _serve(pieces: list[bytes]) -> tuple[list[Seen], bytes]:
    service = Service()
    connection, transport = connect(service.server)
    for piece in pieces:
        if piece and not transport.closed and not transport.eof_written:
            connection.data_received(piece)
            service.soon.settle()
    if not transport.closed:
        connection.eof_received()
    connection.connection_lost(None)
    assert not service.log.errors, service.log.errors
    assert not service.server.connections
    return service.seen, _REFUSAL.sub(b"REFUSED", _DATE.sub(b"", bytes(transport.written)))


def _h11_requests(data: bytes) -> list[Seen | None]:
    """Return the requests that h11 reads; None stands for input that it refuses or, after HTTP/1.0, does not read."""
    parser = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADER_BYTES)
    parser.receive_data(data)
    found: list[Seen | None] = []
    head: h11.Request | None = None
    body = bytearray()
    try:
        while True:
            event: Any = parser.next_event()
            if isinstance(event, h11.Request):
                head, body = event, bytearray()
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                found.append((head.method.decode(), head.target, bytes(body)))
                parser.send(h11.Response(status_code=404, headers=[("Content-Length", "0")]))
                parser.send(h11.EndOfMessage())
                if parser.our_state is not h11.DONE or parser.their_state is not h11.DONE:
                    return [*found, None] if head.http_version == b"1.0" else found
                parser.start_next_cycle()
            else:
                return found
    except h11.RemoteProtocolError:
        return [*found, None]


def _compare_with_h11(ours: list[Seen], theirs: list[Seen | None]) -> None:
    """Assert that the requests that reached a handler are among those of h11, in the same order."""
    refused = None in theirs
    accepted = [request for request in theirs if request is not None]
    place = 0
    for request in ours:
        while place < len(accepted) and accepted[place] != request:
            place += 1  # did not reach a handler: a different path, a body that is too large
        if place == len(accepted):
            assert refused, f"{request} reached a handler, but h11 does not read it: {theirs}"
            return
        place += 1


def check_http_answer(data: bytes) -> None:
    """Check a response to the HTTP client of the daemons."""
    assert _read_answer([data]) == _read_answer(in_pieces(data))


def _read_answer(pieces: list[bytes]) -> tuple[int, bytes] | str:
    reader = _AnswerReader(MAX_BODY_SIZE)
    try:
        for piece in pieces:
            if not reader.is_complete:
                reader.feed(piece)
        if not reader.is_complete:
            reader.end()
    except (HTTPRequestFailed, httptools.HttpParserError):
        return "failed"
    assert len(reader.answer.body) <= MAX_BODY_SIZE
    return reader.answer.status, reader.answer.body


def check_query(data: bytes) -> None:
    """Check the query of a request."""
    try:
        parsed = parse_query(data)
    except HTTPError as refusal:
        assert_one_line(refusal)
        return
    orjson.dumps(parsed)


def check_grants(data: bytes) -> None:
    """Check the response of an auth server."""
    try:
        grants = decode_grants(data)
    except InvalidGrants as refusal:
        assert_one_line(refusal)
        return
    assert grants.ttl_s > 0
    orjson.dumps([grants.identity, grants.identity_url])
    for names in (("topic", ""), ("topic", "channel")):
        assert grants.allow(*names) in (True, False)
