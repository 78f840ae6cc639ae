"""Bytes of HTTP: requests as nsqd and nsqlookupd read them, answers as their client reads them, auth answers.

A request stream must mean the same in whatever pieces it comes; and where h11, a strict reader by others, also accepts
it, the requests must begin and end at the same places: what two servers in a row read differently can be smuggled.
"""

import re
from typing import Any

import h11
import httptools
import orjson
from mutation import in_pieces, speaks

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
# Which mistake is named when there are several may depend on the pieces; that it is refused may not.
_REFUSAL = re.compile(
    rb"HTTP/1\.1 (?:400|431|505) [^\r]*\r\n(?:[^\r]+\r\n)*\r\n"
    rb'\{"message":"(?:BAD_REQUEST|HEADER_TOO_BIG|HTTP_VERSION_NOT_SUPPORTED)"\}'
)
Seen = tuple[str, bytes, bytes]


class Service:
    """A server that notes every request it hands to a handler."""

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
    """A client's side of a connection."""
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
    """The requests that h11 finds; None stands for what it refuses or, as after HTTP/1.0, does not look at."""
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
    """Our requests that reached a handler, in order, must be among h11's: nothing may appear that it does not see."""
    refused = None in theirs
    accepted = [request for request in theirs if request is not None]
    place = 0
    for request in ours:
        while place < len(accepted) and accepted[place] != request:
            place += 1  # not for a handler: another path, a body too large
        if place == len(accepted):
            assert refused, f"{request} was served and is not what h11 reads: {theirs}"
            return
        place += 1


def check_http_answer(data: bytes) -> None:
    """A server's answer, as the daemons' own client reads it."""
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
    """The query of a request."""
    try:
        parsed = parse_query(data)
    except HTTPError as refusal:
        speaks(refusal)
        return
    orjson.dumps(parsed)


def check_grants(data: bytes) -> None:
    """An auth server's answer."""
    try:
        grants = decode_grants(data)
    except InvalidGrants as refusal:
        speaks(refusal)
        return
    assert grants.ttl_s > 0
    orjson.dumps([grants.identity, grants.identity_url])
    for names in (("topic", ""), ("topic", "channel")):
        assert grants.allow(*names) in (True, False)
