"""One HTTP connection: passes requests to their handlers and sends the answers in the order of the requests.

Owns the order of answers, backpressure, the amount of work per turn, the meaning of deadlines, and the ways in which a
connection ends. ``request_reader`` turns bytes into requests, ``body_stream`` sends the body of a streamed response. A
connection has no task and no timer: handlers run in data_received and in the server's round-robin, and the server
checks the deadlines.
"""

from __future__ import annotations

import inspect
import os
from time import perf_counter_ns
from typing import TYPE_CHECKING

from nsqx.net.http_head import Head, refusal
from nsqx.net.peer import peer_address
from nsqx.net.request_log import request_line
from nsqx.net.request_reader import DONE, HEAD, IDLE, RequestReader
from nsqx.net.requests import DEFERRED, Request
from nsqx.net.responses import CONTINUE, Response, StreamedResponse, refusal_response
from nsqx.net.round_robin import LARGE_CHUNK

if TYPE_CHECKING:
    import asyncio
    from ssl import SSLObject

    from nsqx.net.body_stream import BodyStream
    from nsqx.net.http_server import HTTPServer
    from nsqx.net.requests import AnyResponse

# The stages of a connection.
SERVING = 0
FINAL = 1  # no more requests are read; answers are pending
LINGER = 2  # all answers are sent; further bytes are read and dropped so that the client can read the last answer
CLOSING = 3  # the transport is closing

NEVER = float("inf")

# Limit of pipelined requests without an answer; reading stops until some are answered.
_MAX_PENDING_ANSWERS = 128
# Limit of the bytes in their bodies, which stay in memory until then.
_MAX_PENDING_BYTES = 4 * 1024 * 1024
# Requests that one connection may process per turn: about half a millisecond of work.
_REQUESTS_PER_SLICE = 32
_LARGE_CHUNK = LARGE_CHUNK
_FLUSH_SIZE = 64 * 1024
_LINGER_BYTES = 8 * 1024 * 1024
_LINGER_S = 2.0

# The deadline of a body is extended whenever this many bytes have arrived: a body may be slow, but not trickle.
_MIN_BODY_BYTES = 64 * 1024

# Placeholder for a malformed head in the queue of answers.
_BROKEN_HEAD = Head("GET", b"/", {})


class HTTPConnection:
    """An asyncio protocol for one client (by its methods, not by inheritance)."""

    __slots__ = (
        "__weakref__",
        "_body",
        "_body_bytes",
        "_deadline",
        "_descriptor",
        "_drop_left",
        "_eof",
        "_first",
        "_last",
        "_lingers",
        "_out",
        "_out_size",
        "_pending_bytes",
        "_pending_count",
        "_pumping",
        "_reader",
        "_reading_paused",
        "_running",
        "_server",
        "_stage",
        "_transport",
        "_unsent",
        "_waits_turn",
        "_write_paused",
        "remote",
        "tls",
    )

    remote: str
    tls: SSLObject | None

    def __init__(self, server: HTTPServer) -> None:
        self._server = server
        self._reader = RequestReader(server)
        self._transport: asyncio.Transport | None = None
        self._descriptor = -1  # of a plain socket, to which answers can be written directly; -1 otherwise
        self.remote = ""
        self.tls = None
        self._stage = SERVING
        self._deadline = NEVER
        self._body_bytes = _MIN_BODY_BYTES  # received since the last extension of the deadline; enough for a first one
        self._reading_paused = False
        self._write_paused = False
        self._waits_turn = False  # input is left over for a later turn
        self._unsent = 0  # size of the write buffer at the last check, while writing is paused
        self._running = False  # a handler's awaitable has not finished
        self._body: BodyStream | None = None  # the streamed answer to the first request
        self._pumping = False  # answers are being collected; the method that set this sends them
        # Dispatched requests without an answer, linked by Request.following.
        self._first: Request | None = None
        self._last: Request | None = None
        self._pending_count = 0
        self._pending_bytes = 0
        self._out: list[bytes] = []
        self._out_size = 0
        self._eof = False
        self._lingers = False  # the client may still be sending when the last answer is sent
        self._drop_left = _LINGER_BYTES

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.remote = peer_address(transport)[0]
        self.tls = transport.get_extra_info("ssl_object")
        if self.tls is None:
            fileno = getattr(transport.get_extra_info("socket"), "fileno", None)  # not every transport has a socket
            if fileno is not None:
                self._descriptor = fileno()
        server = self._server
        if server.admit(self):
            self._deadline = server.now + server.header_timeout_s
            if server.closing:
                self._close()
            return
        answer = refusal_response(503, "TOO_MANY_CONNECTIONS")
        transport.write(answer.wire_for(http10=False, keep_alive=False, with_body=True))
        self._stage = CLOSING
        transport.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._stage = CLOSING
        self._deadline = NEVER
        if self._body is not None:
            self._body.cancel()
            self._body = None
        request = self._first
        while request is not None:
            following = request.following
            request.detach()
            request = following
        self._first = self._last = None
        self._reader.stop()
        self._out.clear()
        self._transport = None
        self._server.forget(self)

    def data_received(self, data: bytes) -> None:
        if self._stage != SERVING:
            self._drop(len(data))
            return
        reader = self._reader
        was_head = reader.phase == HEAD
        self._body_bytes += len(data)
        reader.add(data)
        self._pump(was_head)
        if len(data) >= _LARGE_CHUNK:
            self._wait_turn()
        self._settle()

    def work(self) -> None:
        """Process the next slice of the input, as a member of the server's round-robin."""
        self._waits_turn = False
        if self._transport is not None:
            self._settle()

    def _wait_turn(self) -> None:
        if not self._waits_turn:
            self._waits_turn = True
            self._server.round_robin.join(self)

    def eof_received(self) -> bool:
        """Handle a half-close: earlier requests are still answered. TLS cannot stay half open."""
        self._eof = True
        if IDLE < self._reader.phase < DONE:
            self._refuse("the client closed in the middle of a request", 400, "BAD_REQUEST")
        waited_for = self._first is not None or self._reader.has_data
        return waited_for and self._stage < LINGER and self.tls is None

    def pause_writing(self) -> None:
        """Stop reading, because the client does not read its answers."""
        self._write_paused = True
        server = self._server
        self._deadline = server.now + server.body_timeout_s
        if self._transport is not None:
            self._unsent = self._transport.get_write_buffer_size()
        self._pause_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        server = self._server
        phase = self._reader.phase
        self._deadline = server.now + (server.header_timeout_s if phase == HEAD else server.body_timeout_s)
        if self._body is not None:
            self._body.resume()
        if not self._pumping:
            self._settle()

    def _pump(self, head_begun: bool) -> None:
        """Process the received requests, within the limits; the deadline of a head that has begun is kept."""
        reader = self._reader
        left = _REQUESTS_PER_SLICE
        self._pumping = True
        while not (self._is_busy() or self._write_paused or self._has_many_pending() or self._stage):
            request = reader.next(self)
            if request is not None:
                head_begun = False
                self._body_bytes = _MIN_BODY_BYTES
                self._dispatch(request)
                left -= 1
                if left == 0:
                    if reader.has_data:
                        self._wait_turn()
                    break
                continue
            if reader.wants_continue and self._first is None:
                self._send_continue()
            if not reader.has_data:
                break
        if reader.refused is not None:
            self._answer_refused()
        phase = reader.phase
        if phase != IDLE and phase != DONE:
            self._expect_more(phase, head_begun)
        self._pumping = False

    def _expect_more(self, phase: int, head_begun: bool) -> None:
        """Set the deadline for the rest of a request."""
        server = self._server
        if phase != HEAD:
            if self._body_bytes >= _MIN_BODY_BYTES:
                self._body_bytes = 0
                self._deadline = server.now + server.body_timeout_s
        elif not head_begun:
            self._deadline = server.now + server.header_timeout_s

    def _send_continue(self) -> None:
        self._reader.wants_continue = False
        self._out.append(CONTINUE)

    def _dispatch(self, request: Request) -> None:
        """Call the handler of a complete request."""
        head = request.head
        route = head.route
        assert route is not None
        self._link(request)
        if not head.keep_alive:
            request.final = True
            self._stop_reading()
        if route.logged and self._server.log.info_enabled:
            request.started_ns = perf_counter_ns()
        if request.answer is not None:
            request.respond(request.answer)
            return
        try:
            answer = route.handler(request)
        except Exception as error:
            answer = self._server.failed(request, error)
            if request.response is not None:
                return
        if answer is DEFERRED:
            return
        if isinstance(answer, Response) or type(answer) is StreamedResponse:
            request.respond(answer)
        elif inspect.isawaitable(answer):
            self._running = True
            self._server.run(self, request, answer)
        else:
            request.respond(self._server.failed(request, TypeError(f"the handler returned {answer!r}")))

    def finish_awaited(self, request: Request, response: AnyResponse) -> None:
        """Answer a request whose handler returned an awaitable."""
        self._running = False
        request.respond(response)

    def _link(self, request: Request) -> None:
        last = self._last
        if last is None:
            self._first = request
        else:
            last.following = request
        self._last = request
        self._pending_count += 1
        self._pending_bytes += len(request.body)

    def answered(self, request: Request) -> None:
        """Send the response of ``request`` once it is the first in the queue, with the finished ones behind it."""
        if request.started_ns:
            self._server.log.info(request_line(request, perf_counter_ns() - request.started_ns))
        if request is self._first:
            self._send_ready()
            if not self._pumping:
                self._settle()

    def _send_ready(self) -> None:
        """Send the finished answers at the start of the queue; a streamed one keeps its place until its body ends."""
        ready = self._first
        while ready is not None and ready.response is not None:
            self._emit(ready, ready.response)
            if self._body is not None:
                return
            ready = self._unlink_first()
        if ready is None and self._reader.wants_continue:
            self._send_continue()

    def _unlink_first(self) -> Request | None:
        """Remove the first request, which is answered; return the next one."""
        request = self._first
        assert request is not None
        self._pending_count -= 1
        self._pending_bytes -= len(request.body)
        self._first = request.following
        if self._first is None:
            self._last = None
        request.detach()
        return self._first

    def _emit(self, request: Request, response: AnyResponse) -> None:
        head = request.head
        if self._server.closing and request.following is None and self._reader.phase == IDLE:
            self._end_after(request)
        if type(response) is StreamedResponse:
            wire = self._start_body(request, response)
        elif head.ordinary and not request.final:
            wire = response.wire()
        else:
            with_body = head.method != "HEAD"
            wire = response.wire_for(http10=head.http10, keep_alive=not request.final, with_body=with_body)
        self._out.append(wire)
        self._out_size += len(wire)
        if self._out_size > _FLUSH_SIZE:
            self._flush()

    def _end_after(self, request: Request) -> None:
        """Make the answer to ``request`` the last one for this client; further requests are not read."""
        request.final = True
        self._stop_reading()
        self._lingers = True

    def _start_body(self, request: Request, response: StreamedResponse) -> bytes:
        """Start sending the body after the head, which is returned."""
        head = request.head
        if head.method != "HEAD":
            if not request.final and response.needs_close(http10=head.http10):
                self._end_after(request)
                self._drop_following(request)
            self._body = self._server.stream(self, request, response)
        return response.head_for(http10=head.http10, keep_alive=not request.final)

    def _drop_following(self, request: Request) -> None:
        """Drop the pipelined requests behind the last one: their answers would look like a part of its body."""
        following = request.following
        request.following = None
        self._last = request
        while following is not None:
            dropped, following = following, following.following
            self._pending_count -= 1
            self._pending_bytes -= len(dropped.body)
            dropped.detach()

    def write(self, data: bytes) -> bool:
        """Send a part of a streamed body; return False if the client must read before the next one."""
        self._out.append(data)
        self._flush()
        return not self._write_paused

    def body_ended(self) -> None:
        """Send the answers behind a streamed one."""
        if self._body is None:
            return  # the client has disconnected
        self._body = None
        self._unlink_first()
        self._send_ready()
        self._settle()
        if self._server.closing:
            self.close_if_idle()

    def _flush(self) -> None:
        out = self._out
        if out:
            data = out[0] if len(out) == 1 else b"".join(out)
            out.clear()
            self._out_size = 0
            transport = self._transport
            if transport is not None and not transport.is_closing():
                if self._descriptor >= 0 and transport.get_write_buffer_size() == 0:
                    data = self._send(data)
                if data:
                    transport.write(data)

    def _send(self, data: bytes) -> bytes:
        """Write answers directly to the socket, bypassing the transport; return the bytes that it did not take."""
        try:
            sent = os.write(self._descriptor, data)
        except OSError:
            return data  # the transport handles the error, if there is one
        return data[sent:]

    def _settle(self) -> None:
        """Send the finished answers, continue postponed work, and determine the next step."""
        self._flush()
        reader = self._reader
        if reader.has_data and not self._must_wait():
            self._pump(False)
            self._flush()
        stage = self._stage
        if stage == SERVING:
            if reader.has_data or self._waits_turn:
                self._pause_reading()
            elif self._reading_paused and not self._write_paused:
                self._resume_reading()
            if reader.phase == IDLE:
                self._settle_idle()
        elif stage == FINAL:
            if self._first is None:
                self._finish()
            elif not self._write_paused:
                self._deadline = NEVER

    def _settle_idle(self) -> None:
        server = self._server
        if self._first is not None or self._reader.has_data:
            if not self._write_paused:
                self._deadline = NEVER
        elif self._eof:
            self._close()
        elif not self._write_paused:
            self._deadline = server.now + server.idle_timeout_s

    def _must_wait(self) -> bool:
        return self._is_busy() or self._write_paused or self._waits_turn or self._has_many_pending()

    def _is_busy(self) -> bool:
        """True while a handler or a streamed body is running: the next request waits."""
        return self._running or self._body is not None

    def _has_many_pending(self) -> bool:
        return self._pending_count >= _MAX_PENDING_ANSWERS or self._pending_bytes >= _MAX_PENDING_BYTES

    def _pause_reading(self) -> None:
        transport = self._transport
        if not self._reading_paused and transport is not None and not transport.is_closing():
            self._reading_paused = True
            transport.pause_reading()

    def _resume_reading(self) -> None:
        self._reading_paused = False
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.resume_reading()

    def _refuse(self, reason: str, status: int, code: str) -> None:
        self._reader.refuse(refusal(status, code, reason))
        self._answer_refused()

    def _answer_refused(self) -> None:
        """Answer without reading the rest, and close: the start of the next request is unknown or far away."""
        refused = self._reader.refused
        assert refused is not None
        request, response = refused
        self._reader.refused = None
        self._stage = FINAL
        self._lingers = True
        if request is None:
            request = Request(self, _BROKEN_HEAD)
        elif request.head.route is not None and request.head.route.logged and self._server.log.info_enabled:
            request.started_ns = perf_counter_ns()
        request.final = True
        self._link(request)
        request.respond(response)

    def _stop_reading(self) -> None:
        self._stage = FINAL
        self._reader.stop()

    def _drop(self, size: int) -> None:
        """Drop bytes after the last request; closing with unread bytes could lose the answer."""
        self._drop_left -= size
        if self._drop_left < 0:
            if self._stage == FINAL:
                self._pause_reading()
            else:
                self.abort()

    def _finish(self) -> None:
        """Close after all requests are answered and nothing more is read."""
        transport = self._transport
        if not self._lingers or self._eof or transport is None or transport.is_closing():
            self._close()
            return
        self._stage = LINGER
        self._deadline = self._server.now + _LINGER_S
        if transport.can_write_eof():
            transport.write_eof()
        if self._reading_paused:
            self._resume_reading()

    def _close(self) -> None:
        self._stage = CLOSING
        self._deadline = self._server.now + self._server.body_timeout_s
        if self._transport is not None:
            self._transport.close()

    def close_if_idle(self) -> None:
        """Close the connection unless a request is pending; the server takes no more requests."""
        if self._stage == SERVING and self._reader.phase == IDLE and not self._reader.has_data and self._first is None:
            self._close()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def expire(self, now: float) -> None:
        """Act if the deadline has passed."""
        transport = self._transport
        if now < self._deadline or transport is None:
            return
        if self._write_paused:
            unsent = transport.get_write_buffer_size()
            if unsent < self._unsent:
                self._unsent = unsent
                self._deadline = now + self._server.body_timeout_s
            else:
                transport.abort()
        elif self._stage != SERVING:
            transport.abort()
        elif self._reader.phase == IDLE:
            self._close()
        else:
            self._refuse("the request did not arrive in time", 408, "REQUEST_TIMEOUT")
