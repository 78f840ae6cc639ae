"""A connection without a socket: the order of answers, backpressure, rejections, deadlines, closing."""

import asyncio
import gc
import itertools
import weakref
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from http_doubles import MemoryTransport, RememberingLog, Soon, connect, read_answers
from nsqx.errors import HTTPError
from nsqx.net.http_server import HTTPServer
from nsqx.net.requests import DEFERRED, DeferredAnswer, Request
from nsqx.net.responses import OK, Response, error_response, plain_response
from nsqx.net.round_robin import LARGE_CHUNK, ROUND_NS
from nsqx.net.router import BodyLimit, Router

HOST = b"Host: x\r\n"
BIG = b"x" * 100_000


class Service:
    """A server with handlers for the tests; requests with a deferred answer are in ``deferred``."""

    def __init__(self, **options: Any) -> None:
        self.deferred: list[Request] = []
        self.seen: list[Request] = []
        self.futures: list[asyncio.Future[Response]] = []
        self.log = RememberingLog()
        router = Router()
        router.add("GET", "/ping", self.ping)
        router.add("POST", "/echo", self.echo, body_limit=BodyLimit(1000, "MSG_TOO_BIG"), logged=False)
        router.add("POST", "/late", self.late, body_limit=BodyLimit(1000, "MSG_TOO_BIG"), logged=False)
        router.add("POST", "/late-large", self.late, body_limit=BodyLimit(1_000_000, "MSG_TOO_BIG"), logged=False)
        router.add("POST", "/asked", self.echo, body_limit=self.limit)
        router.add("GET", "/awaited", self.awaited)
        router.add("GET", "/big", self.big)
        router.add("GET", "/refusing", self.refusing)
        router.add("GET", "/failing", self.failing)
        router.add("GET", "/wrong", self.wrong)
        router.add("GET", "/answered-and-failed", self.answered_and_failed)
        router.add("GET", "/param/:name", self.param)
        router.freeze()
        self.server = HTTPServer(router, self.log, **options)
        self.soon = Soon(self.server)

    def ping(self, request: Request) -> Response:
        self.seen.append(request)
        return plain_response(200, "OK")

    def echo(self, request: Request) -> Response:
        self.seen.append(request)
        return Response(200, request.body)

    def late(self, request: Request) -> DeferredAnswer:
        self.deferred.append(request)
        return DEFERRED

    def limit(self, request: Request) -> BodyLimit:
        return BodyLimit(int(request.query["max"]), "ASKED_TOO_MUCH")

    def awaited(self, _request: Request) -> "asyncio.Future[Response]":
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self.futures.append(future)
        return future

    def big(self, _request: Request) -> Response:
        return Response(200, BIG)

    def refusing(self, _request: Request) -> Response:
        raise HTTPError(503, "EXITING")

    def failing(self, _request: Request) -> Response:
        raise KeyError("secret")

    def wrong(self, _request: Request) -> Any:
        return None

    def answered_and_failed(self, request: Request) -> Response:
        request.respond(OK)
        raise KeyError("after the answer")

    def param(self, request: Request) -> Response:
        return Response(200, request.params["name"].encode())

    async def awaited_answers(self) -> None:
        """Wait until the awaited handlers have finished."""
        await asyncio.gather(*self.server._tasks)

    def answer_deferred(self) -> None:
        """Answer the deferred requests, the last one first."""
        while self.deferred:
            request = self.deferred.pop()
            request.respond(Response(200, request.body))


def get(path: str = "/ping", *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *headers, "", ""]).encode()


def post(path: str, body: bytes, *headers: str) -> bytes:
    return (
        "\r\n".join([f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers, "", ""]).encode()
        + body
    )


def post_chunked(path: str, *chunks: bytes) -> bytes:
    coded = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + coded


def talk(data: bytes, **options: Any) -> tuple[list[tuple[int, bytes]], MemoryTransport, Service]:
    """Return the status and body of each answer to ``data``, the transport and the service."""
    service = Service(**options)
    connection, transport = connect(service.server)
    connection.data_received(data)
    return [(answer.status, answer.body) for answer in read_answers(transport.written)], transport, service


def test_a_handler_sees_the_request() -> None:
    _, _, service = talk(post("/echo?a=b&a=c", b"body", "X-Y: z"))
    (request,) = service.seen
    assert (request.method, request.path, request.raw_query) == ("POST", "/echo", b"a=b&a=c")
    assert request.query == {"a": "b"}
    assert request.headers[b"x-y"] == b"z"
    assert (request.body, request.remote, request.tls) == (b"body", "127.0.0.1:4321", None)


@pytest.mark.parametrize(
    ("peer", "text"),
    [(("::1", 80, 0, 0), "[::1]:80"), ("", "@"), (b"", "@"), (None, "@"), (("10.0.0.1", 1), "10.0.0.1:1")],
)
def test_the_remote_address_of_a_request(peer: object, text: str) -> None:
    connection, _ = connect(Service().server, MemoryTransport(peer))
    assert connection.remote == text


def test_a_path_parameter_reaches_the_handler() -> None:
    assert talk(get("/param/a%20b"))[0] == [(200, b"a b")]


def test_requests_with_equal_heads_keep_their_bodies() -> None:
    answers, _, _ = talk(post("/echo", b"one") + post("/echo", b"two") + get("/param/a") + get("/param/b"))
    assert answers == [(200, b"one"), (200, b"two"), (200, b"a"), (200, b"b")]


def test_the_cache_of_heads_is_bounded() -> None:
    service = Service()
    connection, transport = connect(service.server)
    for number in range(3000):
        connection.data_received(get(f"/param/{number}"))
    assert [int(answer.body) for answer in read_answers(transport.written)] == list(range(3000))
    assert len(service.server.heads) <= 1024
    connection.data_received(get("/param/" + "x" * 2000))
    assert all(len(raw) <= 1024 for raw in service.server.heads)


def test_pipelined_answers_are_sent_in_one_write() -> None:
    answers, transport, _ = talk(get() * 5)
    assert len(answers) == 5
    assert transport.writes == 1


def test_deferred_answers_keep_the_order() -> None:
    service = Service()
    connection, transport = connect(service.server)
    connection.data_received(get() + post("/late", b"1") + get("/param/2") + post("/late", b"3") + get("/param/4"))
    assert [answer.body for answer in read_answers(transport.written)] == [b"OK"]
    first, second = service.deferred
    second.respond(Response(200, b"3"))
    assert [answer.body for answer in read_answers(transport.written)] == [b"OK"]
    first.respond(Response(200, b"1"))
    assert [answer.body for answer in read_answers(transport.written)] == [b"OK", b"1", b"2", b"3", b"4"]
    assert transport.writes == 2


def test_a_second_answer_is_an_error() -> None:
    service = Service()
    connection, _ = connect(service.server)
    connection.data_received(post("/late", b"1"))
    (request,) = service.deferred
    request.respond(OK)
    with pytest.raises(AssertionError):
        request.respond(OK)


def test_an_answer_after_disconnection_is_dropped() -> None:
    service = Service()
    connection, transport = connect(service.server)
    connection.data_received(post("/late", b"1") + post("/late", b"2"))
    connection.connection_lost(None)
    service.answer_deferred()
    assert not transport.written


def test_an_answer_while_the_transport_closes_is_dropped() -> None:
    """The transport is closing, but connection_lost has not been called yet."""
    service = Service()
    connection, transport = connect(service.server)
    connection.data_received(post("/late", b"1"))
    transport.abort()
    service.answer_deferred()
    assert not transport.written


@pytest.mark.parametrize("data", [post("/late", b"1") * 2, post_chunked("/echo", b"abc")[:-6], get()[:-1]])
def test_a_lost_connection_is_freed(data: bytes) -> None:
    service = Service()
    connection, transport = connect(service.server)
    connection.data_received(data)
    seen = [weakref.ref(connection)]
    if connection._reader._chunks is not None:
        seen.append(weakref.ref(connection._reader._chunks))
    gc.disable()
    try:
        connection.connection_lost(None)
        del connection
        assert [reference() for reference in seen] == [None] * len(seen)
    finally:
        gc.enable()
    assert not transport.written


def test_many_deferred_answers_pause_reading() -> None:
    service = Service()
    connection, transport = connect(service.server)
    connection.data_received(post("/late", b"x") * 300)
    service.soon.settle()
    assert len(service.deferred) == 128
    assert not transport.reading
    answered = 0
    while service.deferred:
        service.deferred.pop(0).respond(OK)
        service.soon.settle()
        answered += 1
    assert answered == 300
    assert transport.reading
    assert len(read_answers(transport.written)) == 300


async def test_requests_wait_for_an_awaited_handler() -> None:
    service = Service()
    connection, transport = connect(service.server)
    connection.data_received(get("/awaited") + get("/awaited") + get())
    assert len(service.futures) == 1
    assert not transport.reading
    connection.data_received(get("/param/x")[:10])  # was in transit when reading stopped
    connection.data_received(get("/param/x")[10:])
    for number, future in enumerate(service.futures):  # the second is added when the first is done
        future.set_result(Response(200, b"%d" % number))
        await service.awaited_answers()
    assert [answer.body for answer in read_answers(transport.written)] == [b"0", b"1", b"OK", b"x"]
    assert transport.reading


@pytest.mark.parametrize(
    ("error", "answer", "logged"),
    [
        (HTTPError(404, "TOPIC_NOT_FOUND"), (404, b'{"message":"TOPIC_NOT_FOUND"}'), 0),
        (ValueError("secret"), (500, b'{"message":"INTERNAL_ERROR"}'), 1),
    ],
)
async def test_errors_of_awaited_handlers(error: Exception, answer: tuple[int, bytes], logged: int) -> None:
    service = Service()
    connection, transport = connect(service.server)
    connection.data_received(get("/awaited") + get())
    service.futures[0].set_exception(error)
    await service.awaited_answers()
    assert [(sent.status, sent.body) for sent in read_answers(transport.written)] == [answer, (200, b"OK")]
    assert len(service.log.errors) == logged


async def test_an_awaited_answer_after_disconnection_is_dropped() -> None:
    service = Service()
    connection, transport = connect(service.server)
    connection.data_received(get("/awaited") + get())
    connection.connection_lost(None)
    service.futures[0].set_result(OK)
    await service.awaited_answers()
    assert not transport.written
    assert not service.seen


@pytest.mark.parametrize("path", ["/failing", "/wrong"])
def test_a_failing_handler_is_answered_with_500(path: str) -> None:
    answers, transport, service = talk(get(path) + get())
    assert answers == [(500, b'{"message":"INTERNAL_ERROR"}'), (200, b"OK")]
    (line,) = service.log.errors
    assert path in line
    assert "\n" not in line
    assert not transport.closed


def test_a_handler_may_fail_after_its_answer() -> None:
    answers, _, service = talk(get("/answered-and-failed") + get())
    assert answers == [(200, b"OK"), (200, b"OK")]
    assert len(service.log.errors) == 1


def test_an_http_error_becomes_the_answer() -> None:
    answers, _, service = talk(get("/refusing") + get())
    assert answers == [(503, b'{"message":"EXITING"}'), (200, b"OK")]
    assert not service.log.errors


def test_a_route_decides_whether_requests_are_logged() -> None:
    _, _, service = talk(
        get() + post("/echo", b"x") + get("/refusing?a=%20b") + get("/nope") + get("/PING") + b"nonsense\r\n\r\n"
    )
    lines = [line.rpartition(" ")[0] for line in service.log.infos]
    remote = "(127.0.0.1:4321)"
    assert lines == [
        f"200 GET /ping {remote}",
        f"503 GET /refusing?a=%20b {remote}",
        f"404 GET /nope {remote}",
    ]
    assert len(service.log.debugs) == 1


def test_nothing_is_logged_if_info_is_disabled() -> None:
    service = Service()
    service.log.info_enabled = False
    connection, _ = connect(service.server)
    connection.data_received(get() + get("/nope"))
    assert not service.log.infos


def test_http10_closes_the_connection() -> None:
    answers, transport, _ = talk(b"GET /ping HTTP/1.0\r\n\r\n" + get())
    assert answers == [(200, b"OK")]
    assert transport.closed
    assert read_answers(transport.written)[0].version == "HTTP/1.0"


def test_http10_may_be_kept_alive() -> None:
    answers, transport, _ = talk(b"GET /ping HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + get())
    assert len(answers) == 2
    assert not transport.closed
    assert read_answers(transport.written)[0].headers["connection"] == "keep-alive"


def test_connection_close_is_obeyed() -> None:
    answers, transport, _ = talk(get("/ping", "Connection: close") + get())
    assert answers == [(200, b"OK")]
    assert transport.closed
    assert read_answers(transport.written)[0].headers["connection"] == "close"


def test_connection_close_waits_for_a_deferred_answer() -> None:
    service = Service()
    connection, transport = connect(service.server)
    connection.data_received(post("/late", b"1", "Connection: close") + get())
    assert not transport.closed
    service.answer_deferred()
    assert transport.closed
    assert [answer.body for answer in read_answers(transport.written)] == [b"1"]


def test_an_answer_to_head_has_no_body() -> None:
    _, transport, _ = talk_raw(b"HEAD /ping HTTP/1.1\r\nHost: x\r\n\r\n" + get())
    head, ping = read_answers(transport.written, to_heads=1)
    assert (head.status, head.headers["content-length"]) == (405, "32")
    assert ping.body == b"OK"


def talk_raw(data: bytes) -> tuple[Any, MemoryTransport, Service]:
    service = Service()
    connection, transport = connect(service.server)
    connection.data_received(data)
    return connection, transport, service


def test_an_upgrade_with_a_body_smuggles_no_request() -> None:
    upgrade = ("Connection: Upgrade", "Upgrade: h2c")
    hidden = get("/param/hidden")
    assert talk(post("/echo", hidden, *upgrade) + get())[0] == [(200, hidden), (200, b"OK")]
    chunked = post_chunked("/echo", hidden).replace(b"\r\n", b"\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n", 1)
    assert talk(chunked + get())[0] == [(200, hidden), (200, b"OK")]


def test_trailers_do_not_become_headers() -> None:
    chunked = post_chunked("/echo", b"a")[:-2] + b"X-Evil: 1\r\n\r\n"
    _, _, service = talk(chunked + get())
    assert all(b"x-evil" not in request.headers for request in service.seen)
    assert len(service.seen) == 2


def test_a_rejection_follows_earlier_answers() -> None:
    service = Service()
    connection, transport = connect(service.server)
    connection.data_received(post("/late", b"1") + b"GET /ping HTTP/1.1\r\n\r\n" + get())
    assert not transport.written
    service.answer_deferred()
    assert [answer.status for answer in read_answers(transport.written)] == [200, 400]
    assert transport.eof_written
    assert not service.seen


def test_a_rejection_closes_after_time_to_read_it() -> None:
    service = Service()
    connection, transport = connect(service.server)
    connection.data_received(b"nonsense\r\n\r\n")
    (answer,) = read_answers(transport.written)
    assert (answer.status, answer.body) == (400, b'{"message":"BAD_REQUEST"}')
    assert answer.headers["connection"] == "close"
    assert transport.eof_written
    assert not transport.closed
    connection.data_received(b"x" * 1000)  # dropped
    assert not connection.eof_received()  # the transport closes
    assert len(read_answers(transport.written)) == 1


def test_a_client_that_keeps_sending_after_a_rejection_is_closed() -> None:
    connection, transport, _ = talk_raw(b"nonsense\r\n\r\n")
    for _ in range(9):
        connection.data_received(b"x" * 1024 * 1024)
    assert transport.aborted


@pytest.mark.parametrize(
    "start", [b"\x16\x03\x01", b"  V2", b"get /", b"\r\n", b"GET /ping HTTP/1.1\n", b"GET /ping HTTP/1.1\r\nA: b\nC"]
)
def test_input_that_cannot_become_a_request_is_rejected_at_once(start: bytes) -> None:
    _, transport, _ = talk_raw(start)
    assert [answer.status for answer in read_answers(transport.written)] == [400]


def test_a_line_break_may_arrive_in_two_parts() -> None:
    connection, transport, _ = talk_raw(b"GET /ping HTTP/1.1\r")
    connection.data_received(b"\nHost: x\r\n\r")
    connection.data_received(b"\n")
    assert [answer.status for answer in read_answers(transport.written)] == [200]


def test_a_body_over_the_limit_is_rejected_unread() -> None:
    answers, transport, service = talk(post("/echo", b"")[:-5].replace(b"Content-Length: 0", b"Content-Length: 1001"))
    assert not answers  # the head has no end yet
    connection, transport = connect(service.server)
    connection.data_received(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n")
    (answer,) = read_answers(transport.written)
    assert (answer.status, answer.body) == (413, b'{"message":"MSG_TOO_BIG"}')
    assert answer.headers["connection"] == "close"
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"
    assert not service.seen


def test_a_body_at_the_limit_is_accepted() -> None:
    assert talk(post("/echo", b"x" * 1000))[0] == [(200, b"x" * 1000)]
    assert talk(post_chunked("/echo", b"x" * 500, b"x" * 500))[0] == [(200, b"x" * 1000)]


def test_a_chunked_body_over_the_limit_is_rejected() -> None:
    answers, transport, service = talk(post_chunked("/echo", b"x" * 500, b"x" * 501) + get())
    assert answers == [(413, b'{"message":"MSG_TOO_BIG"}')]
    assert transport.eof_written
    assert not service.seen


def test_a_limit_may_depend_on_the_request() -> None:
    assert talk(post("/asked?max=3", b"abc"))[0] == [(200, b"abc")]
    assert talk(post("/asked?max=2", b"abc"))[0] == [(413, b'{"message":"ASKED_TOO_MUCH"}')]
    assert talk(post("/asked?max=%zz", b"abc"))[0] == [(400, b'{"message":"INVALID_REQUEST"}')]
    assert talk(post("/asked?max=x", b"abc"))[0] == [(500, b'{"message":"INTERNAL_ERROR"}')]


def test_rejected_requests_are_logged() -> None:
    _, _, service = talk(post("/asked?max=2", b"abc"))
    assert service.log.infos[0].startswith("413 POST /asked?max=2 (127.0.0.1:4321) ")


def test_an_unused_body_is_skipped() -> None:
    answers, transport, _ = talk(post("/nope", b"x" * 1000) + post("/ping", b"y") + get())
    assert [status for status, _ in answers] == [404, 405, 200]
    assert not transport.closed


def test_a_large_unused_body_is_not_read() -> None:
    answers, transport, _ = talk(post("/nope", b"x" * 300_000))
    assert answers == [(404, b'{"message":"NOT_FOUND"}')]
    assert transport.eof_written


def test_an_announced_body_allocates_nothing() -> None:
    service = Service()
    service.server._router._methods["POST"]._static["/echo"].body_limit = BodyLimit(2**62, "")
    connection, transport = connect(service.server)
    connection.data_received(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\nabc" % 2**61)
    assert not transport.closed
    assert connection._reader._pieces.size == 3


def test_100_continue_is_sent_before_the_body() -> None:
    head, body = post("/echo", b"body", "Expect: 100-continue").split(b"body")[0], b"body"
    connection, transport, _ = talk_raw(head)
    assert transport.written == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.data_received(body)
    assert [answer.body for answer in read_answers(transport.written)] == [b"", b"body"]


def test_100_continue_is_sent_even_if_the_body_has_arrived() -> None:
    request = post("/echo", b"body", "Expect: 100-continue")
    answers, transport, _ = talk(request + request + get())
    assert answers == [(100, b""), (200, b"body"), (100, b""), (200, b"body"), (200, b"OK")]
    assert transport.reading


def test_100_continue_waits_for_earlier_answers() -> None:
    connection, transport, service = talk_raw(post("/late", b"1") + post("/echo", b"22", "Expect: 100-continue")[:-2])
    assert not transport.written
    service.answer_deferred()
    assert [(answer.status, answer.body) for answer in read_answers(transport.written)] == [(200, b"1"), (100, b"")]
    connection.data_received(b"22")
    assert [answer.status for answer in read_answers(transport.written)] == [200, 100, 200]


@pytest.mark.parametrize(("path", "length", "status"), [("/echo", 1001, 413), ("/nope", 10, 404)])
def test_100_continue_is_not_sent_for_a_rejected_request(path: str, length: int, status: int) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\nExpect: 100-continue\r\n\r\n".encode()
    answers, transport, _ = talk(head)
    assert [answer[0] for answer in answers] == [status]
    assert transport.eof_written


def test_the_size_of_a_head_is_limited() -> None:
    answers, transport, _ = talk(get("/ping", "A: " + "x" * 2000), max_header_bytes=1000)
    assert answers == [(431, b'{"message":"HEADER_TOO_BIG"}')]
    assert transport.eof_written


def test_an_endless_head_is_rejected() -> None:
    service = Service(max_header_bytes=1000)
    connection, transport = connect(service.server)
    connection.data_received(b"GET /ping HTTP/1.1\r\nA: ")
    for _ in range(10):
        connection.data_received(b"x" * 100)
    assert [answer.status for answer in read_answers(transport.written)] == [431]


def test_the_gate_answers_instead_of_the_handler() -> None:
    closed = error_response(403, "TLS_REQUIRED")
    answers, transport, service = talk(get() + post("/echo", b"x") + get("/nope"), gate=lambda _request: closed)
    assert [status for status, _ in answers] == [403, 403, 403]
    assert not service.seen
    assert not transport.closed


def test_the_gate_is_called_before_the_body_is_read() -> None:
    closed = error_response(403, "TLS_REQUIRED")
    head = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
    assert [status for status, _ in talk(head, gate=lambda _request: closed)[0]] == [403]


def test_the_gate_accepts_and_rejects() -> None:
    def gate(request: Request) -> Response | None:
        if b"authorization" not in request.headers:
            raise HTTPError(401, "UNAUTHORIZED")
        if request.headers[b"authorization"] == b"boom":
            raise ValueError
        return None

    answers, _, service = talk(
        get() + get("/ping", "Authorization: a") + get("/ping", "Authorization: boom"), gate=gate
    )
    assert [status for status, _ in answers] == [401, 200, 500]
    assert len(service.log.errors) == 1


def test_a_client_that_does_not_read_is_not_read_from() -> None:
    class FullTransport(MemoryTransport):
        def write(self, data: bytes) -> None:
            super().write(data)
            connection.pause_writing()

    service = Service()
    transport = FullTransport()
    connection, _ = connect(service.server, transport)
    connection.data_received(get("/big") * 10)
    assert len(read_answers(transport.written)) == 1
    assert not transport.reading
    for count in range(2, 11):
        connection.resume_writing()
        assert len(read_answers(transport.written)) == count
    connection.resume_writing()
    assert transport.reading


def test_a_half_closed_client_still_gets_its_answers() -> None:
    service = Service()
    connection, transport = connect(service.server)
    connection.data_received(post("/late", b"1") + get())
    assert connection.eof_received()
    service.answer_deferred()
    assert [answer.body for answer in read_answers(transport.written)] == [b"1", b"OK"]
    assert transport.closed


@pytest.mark.parametrize("data", [get()[:-1], post("/echo", b"abc")[:-1], post_chunked("/echo", b"abc")[:-1]])
def test_a_request_that_ends_early_is_rejected(data: bytes) -> None:
    connection, transport, service = talk_raw(data)
    assert not connection.eof_received()
    assert [answer.status for answer in read_answers(transport.written)] == [400]
    assert not service.seen


def test_an_idle_client_may_disconnect() -> None:
    connection, transport, _ = talk_raw(get())
    assert not connection.eof_received()
    connection.connection_lost(None)
    assert len(read_answers(transport.written)) == 1


def test_a_closing_server_accepts_no_connection() -> None:
    service = Service()
    service.server.closing = True
    _, transport = connect(service.server)
    assert transport.closed


def test_a_closing_server_sends_pending_answers() -> None:
    service = Service()
    connection, transport = connect(service.server)
    connection.data_received(post("/late", b"1") + post("/late", b"2"))
    service.server.closing = True
    service.answer_deferred()
    answers = read_answers(transport.written)
    assert [(answer.body, answer.headers.get("connection")) for answer in answers] == [(b"1", None), (b"2", "close")]
    assert transport.eof_written
    connection.data_received(get())
    assert len(read_answers(transport.written)) == 2


class TestDeadlines:
    """The test advances the time instead of the server's sweep."""

    def setup_method(self) -> None:
        self.service = Service(header_timeout_s=10, body_timeout_s=60, idle_timeout_s=120)
        self.server = self.service.server
        self.connection, self.transport = connect(self.server)

    def pass_time(self, seconds: float) -> None:
        end = self.server.now + seconds
        while self.server.now < end:
            self.server.now += 1
            self.connection.expire(self.server.now)

    def statuses(self) -> list[int]:
        return [answer.status for answer in read_answers(self.transport.written)]

    def test_a_silent_client_is_closed(self) -> None:
        self.pass_time(10)
        assert not self.transport.closed
        self.pass_time(2)
        assert self.transport.closed
        assert not self.transport.written

    def test_an_incomplete_head_is_answered_with_408(self) -> None:
        self.connection.data_received(get()[:-1])
        self.pass_time(10)
        assert not self.transport.written
        self.pass_time(2)
        assert self.statuses() == [408]

    def test_a_slow_head_gets_no_more_time(self) -> None:
        for byte in get("/ping", "A: " + "x" * 50):
            self.connection.data_received(bytes([byte]))
            self.pass_time(1)
        assert self.statuses() == [408]

    def test_a_later_head_has_its_own_deadline(self) -> None:
        self.connection.data_received(get())
        self.pass_time(100)
        self.connection.data_received(get() + get()[:-1])
        self.pass_time(10)
        assert self.statuses() == [200, 200]
        self.pass_time(2)
        assert self.statuses() == [200, 200, 408]

    @pytest.mark.parametrize("data", [post("/echo", b"x" * 500)[:-400], post_chunked("/echo", b"x" * 500)[:-400]])
    def test_a_trickling_body_is_answered_with_408(self, data: bytes) -> None:
        """A trickle does not extend the deadline."""
        self.connection.data_received(data)
        for _ in range(6):
            self.pass_time(10)
            self.connection.data_received(b"x")
        assert not self.transport.written
        self.pass_time(2)
        assert self.statuses() == [408]

    def test_a_slow_body_gets_more_time(self) -> None:
        size = 6 * 64 * 1024
        head = b"POST /asked?max=%d HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (size, size)
        self.connection.data_received(head)
        for _ in range(5):
            self.pass_time(50)
            self.connection.data_received(b"x" * 64 * 1024)
        self.pass_time(60)
        assert not self.transport.closed
        self.connection.data_received(b"x" * 64 * 1024)
        assert self.statuses() == [200]

    def test_an_idle_connection_is_closed(self) -> None:
        self.connection.data_received(get())
        self.pass_time(120)
        assert not self.transport.closed
        self.pass_time(2)
        assert self.transport.closed
        assert self.statuses() == [200]

    def test_each_request_restarts_the_idle_timeout(self) -> None:
        for _ in range(5):
            self.connection.data_received(get())
            self.pass_time(100)
        assert self.statuses() == [200] * 5
        assert not self.transport.closed

    def test_a_handler_has_no_deadline(self) -> None:
        self.connection.data_received(post("/late", b"1"))
        self.pass_time(1000)
        assert not self.transport.closed
        self.service.answer_deferred()
        self.pass_time(100)
        assert not self.transport.closed
        self.pass_time(30)
        assert self.transport.closed

    def test_the_handler_of_the_last_request_has_no_deadline(self) -> None:
        self.connection.data_received(post("/late", b"1", "Connection: close"))
        self.pass_time(1000)
        assert not self.transport.closed
        self.service.answer_deferred()
        assert self.statuses() == [200]

    def test_a_client_that_stays_after_a_rejection_is_closed(self) -> None:
        self.connection.data_received(b"nonsense\r\n\r\n")
        assert not self.transport.closed
        self.pass_time(5)
        assert self.transport.aborted

    def test_a_client_that_reads_nothing_is_closed(self) -> None:
        self.connection.data_received(get("/big"))
        self.transport.write_buffer_size = 100_000
        self.connection.pause_writing()
        for _ in range(5):
            self.transport.write_buffer_size -= 1
            self.pass_time(60)
            assert not self.transport.closed
        self.pass_time(65)
        assert self.transport.aborted

    def test_a_transport_that_does_not_close_is_aborted(self) -> None:
        self.connection.data_received(get("/ping", "Connection: close"))
        assert self.transport.closed
        assert not self.transport.aborted
        self.pass_time(65)
        assert self.transport.aborted


bodies = st.binary(max_size=60)
requests = st.one_of(
    st.just((get(), b"OK")),
    st.builds(lambda body: (post("/echo", body), body), bodies),
    st.builds(lambda body: (post("/late", body), body), bodies),
    st.builds(lambda body: (post("/late", body, "Expect: 100-continue"), body), bodies.filter(len)),
    st.builds(
        lambda chunks: (post_chunked("/echo", *chunks), b"".join(chunks)),
        st.lists(st.one_of(st.binary(min_size=1, max_size=20), st.just(b"\r\n\r\n"))),
    ),
    st.just((get("/nope"), b'{"message":"NOT_FOUND"}')),
    st.builds(lambda name: (get(f"/param/{name}"), name.encode()), st.text("abc", min_size=1, max_size=5)),
)


@settings(max_examples=300)
@given(conversation=st.lists(requests, min_size=1, max_size=8), cuts=st.lists(st.integers(0, 2000)), lazy=st.booleans())
def test_any_split_of_the_input_gives_the_same_answers(
    conversation: list[tuple[bytes, bytes]], cuts: list[int], lazy: bool
) -> None:
    service = Service()
    connection, transport = connect(service.server)
    stream = b"".join(request for request, _ in conversation)
    places = sorted({0, *(cut % len(stream) for cut in cuts), len(stream)})
    for start, end in zip(places, places[1:], strict=False):
        connection.data_received(stream[start:end])
        if not lazy:
            service.answer_deferred()
    service.answer_deferred()
    answers = [answer.body for answer in read_answers(transport.written) if answer.status != 100]
    assert answers == [answer for _, answer in conversation]
    assert transport.reading
    assert not transport.closed
    assert not service.log.debugs


fragments = st.one_of(
    st.binary(max_size=10),
    st.sampled_from(
        [
            get(),
            post("/echo", b"abc"),
            post_chunked("/echo", b"abc"),
            b"GET ",
            b"POST ",
            b"/ping",
            b" HTTP/1.1",
            b" HTTP/1.0",
            b"\r\n",
            b"\n",
            b"\r\n\r\n",
            HOST,
            b"Content-Length: 5\r\n",
            b"Content-Length: -5\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"Connection: close\r\n",
            b"Connection: Upgrade\r\nUpgrade: x\r\n",
            b"Expect: 100-continue\r\n",
            b"5\r\nhello\r\n",
            b"0\r\n\r\n",
        ]
    ),
)


@settings(max_examples=300)
@given(parts=st.lists(fragments, max_size=20))
def test_any_input_gives_complete_answers_and_no_exception(parts: list[bytes]) -> None:
    service = Service()
    connection, transport = connect(service.server)
    for part in parts:
        if part and not transport.closed:
            connection.data_received(part)
    if not transport.closed:
        connection.eof_received()
    connection.connection_lost(None)
    read_answers(transport.written)
    assert not service.log.errors
    assert not service.server.connections


def test_large_bodies_with_deferred_answers_pause_reading() -> None:
    service = Service()
    connection, transport = connect(service.server)
    connection.data_received(post("/late-large", b"x" * 1_000_000) * 8)
    service.soon.settle()
    assert len(service.deferred) == 5
    assert not transport.reading
    while service.deferred:
        service.deferred.pop(0).respond(OK)
        service.soon.settle()
    assert len(read_answers(transport.written)) == 8
    assert transport.reading


# Taking turns


def test_pipelined_requests_are_processed_in_slices() -> None:
    service = Service()
    soon = Soon(service.server, itertools.count(0, ROUND_NS).__next__)  # every slice uses up a turn
    connection, transport = connect(service.server)
    connection.data_received(get() * 1000)
    counts = [len(service.seen)]
    while counts[-1] < 1000:
        assert not transport.reading
        soon.run_scheduled()
        counts.append(len(service.seen))
    assert all(0 < later - earlier <= 32 for earlier, later in itertools.pairwise([0, *counts])), counts
    assert len(read_answers(transport.written)) == 1000
    soon.settle()
    assert transport.reading


def test_busy_connections_take_turns_and_others_do_not_wait() -> None:
    service = Service()
    soon = Soon(service.server, itertools.count(0, ROUND_NS).__next__)
    floods = [connect(service.server) for _ in range(3)]
    for connection, _ in floods:
        connection.data_received(get("/param/x") * 320)
    polite, polite_transport = connect(service.server)
    for _ in range(27):
        lengths = [len(read_answers(transport.written)) for _, transport in floods]
        assert max(lengths) - min(lengths) <= 32, lengths
        polite_transport.written.clear()
        polite.data_received(get())
        assert len(read_answers(polite_transport.written)) == 1
        soon.run_scheduled()
    assert [len(read_answers(transport.written)) for _, transport in floods] == [320] * 3


def test_only_one_large_chunk_of_a_body_is_processed_per_turn() -> None:
    service = Service()
    connection, transport = connect(service.server)
    body = b"x" * (2 * LARGE_CHUNK)
    request = b"POST /asked?max=%d HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % (len(body), len(body)) + body
    connection.data_received(request[:LARGE_CHUNK])
    assert not transport.reading
    service.soon.run_scheduled()
    assert transport.reading
    connection.data_received(request[LARGE_CHUNK:])
    service.soon.settle()
    assert [answer.body for answer in read_answers(transport.written)] == [body]


def test_a_connection_lost_between_two_slices_is_not_processed() -> None:
    service = Service()
    connection, _ = connect(service.server)
    connection.data_received(get() * 100)
    before = len(service.seen)
    connection.connection_lost(None)
    service.soon.settle()
    assert len(service.seen) == before


def test_a_close_in_a_later_slice_ends_the_connection() -> None:
    service = Service()
    connection, transport = connect(service.server)
    last = b"GET /ping HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    connection.data_received(get() * 50 + last + get() * 50)
    service.soon.settle()
    assert len(read_answers(transport.written)) == 51
    assert transport.closed


def test_a_server_has_no_port_and_no_address_before_serve() -> None:
    server = HTTPServer(Router(), RememberingLog())

    assert server.port == -1
    assert server.address == ""
