"""Between an asyncio transport and a session: bytes in, bytes out, heartbeats and deadlines.

A connection is dead when no complete command came for two heartbeat intervals, or when its socket took nothing for
one. Before the magic there is no session, and little patience.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nsqx.net.compression import BadCompression, Deflate, Snappy
from nsqx.net.layers import Layers
from nsqx.net.peer import keep_alive, peer_address
from nsqx.net.tls import TLSFailed, TLSLayer
from nsqx.nsqd.client import OUTPUT_LIMIT
from nsqx.nsqd.handshake import Handshake
from nsqx.nsqd.session import MAGIC, Session
from nsqx.wire import frames

if TYPE_CHECKING:
    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.client import Client
    from nsqx.nsqd.negotiation import Outcome

_BAD_PROTOCOL = frames.encode_frame(frames.ERROR, b"E_BAD_PROTOCOL")
_NS_PER_S = 1_000_000_000
# How long a closing connection may take to send what it has left, once it has no heartbeats to go by.
_LINGER_S = 5.0
_HANDSHAKE_S = 5.0
# A client that has left so much unread is not listened to until it reads on.
_MAX_UNREAD = 4 * OUTPUT_LIMIT
# Pieces of at most 256 KiB that one connection may make others wait for.
_PIECES_PER_TURN = 8
# A consumer that holds so many messages and sends no more than a few FINs at once is read again after a moment, in
# which it cannot run out of messages. To read, hand out and send for each FIN by itself costs twice as much.
_PLENTY = 2048
_LITTLE = 4 * len("FIN 0123456789abcdef\n")
_REST_S = 0.001


class Connection:
    """The asyncio protocol of one TCP client; duck-typed so that it can be compiled."""

    __slots__ = (
        "_agreed",
        "_alive_at_s",
        "_blocked_at_s",
        "_broker",
        "_descriptor",
        "_handshake",
        "_heartbeat_at_s",
        "_host",
        "_interval_ns",
        "_layers",
        "_listens",
        "_loop",
        "_pieces_left",
        "_prelude",
        "_seen_commands",
        "_session",
        "_timer",
        "_transport",
        "_turn",
    )

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        self._broker = broker
        self._turn = broker.turn
        self._loop = loop
        self._transport: Any = None
        self._descriptor = -1
        self._session: Session | None = None
        self._host = ""
        self._prelude = b""
        self._seen_commands = 0
        self._interval_ns = 0
        self._alive_at_s = 0.0
        self._heartbeat_at_s = 0.0
        self._blocked_at_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        # What was agreed on and is to be done next; the layers that are on; the handshake that is under way.
        self._agreed: Outcome | None = None
        self._layers: Layers | None = None
        self._handshake: Handshake | None = None
        # False until the client reads on; pieces of what was received that are still to be handled.
        self._listens = True
        self._pieces_left: Iterator[bytes] | None = None

    # From the transport

    def connection_made(self, transport: Any) -> None:
        """A client has connected."""
        self._transport = transport
        fileno = getattr(transport.get_extra_info("socket"), "fileno", None)  # not every transport has a socket
        if fileno is not None:
            self._descriptor = fileno()
        transport.set_write_buffer_limits(high=OUTPUT_LIMIT // 2)
        keep_alive(transport)
        address, self._host = peer_address(transport)
        self._broker.log.info("TCP: new client(%s)", address)
        if not self._broker.admits(self._host):
            self._broker.log.warn("TCP: too many clients, closing client(%s)", address)
            transport.abort()
            return
        self._broker.connections.add(self)
        self._broker.hosts[self._host] += 1
        self._timer = self._loop.call_later(self._broker.client_timeout_s, self._give_up_on_magic)

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        session = self._session
        if session is None:
            data = self._prelude + data
            if len(data) < len(MAGIC):
                self._prelude = data
                return
            session = self._begin(data)
            if session is None:
                return
            data = data[len(MAGIC) :]
        if self._layers is None:
            session.receive(data)
        else:
            self._receive_layered(session, data)
        self._turn.end()
        if session.command_count != self._seen_commands:
            self._seen_commands = session.command_count
            self._alive_at_s = self._loop.time()
            # A handshake has its own deadline, and heartbeats begin after it.
            if session.client.heartbeat_interval_ns != self._interval_ns and self._handshake is None:
                self._start_heartbeat(session.client)
        if self._blocked_at_s:
            self._listen_less()
        elif len(data) <= _LITTLE and session.client.in_flight_count >= _PLENTY and self._layers is None:
            self._hear_less_often()

    def eof_received(self) -> bool:
        """The client sends no more; the session answers what is left and then closes."""
        if self._session is None:
            return False
        self._session.receive_end()
        self._turn.end()
        return True

    def pause_writing(self) -> None:
        """The socket takes no more for now."""
        self._blocked_at_s = self._loop.time()
        if self._session is not None:
            self._session.client.writable = False
            self._schedule()

    def resume_writing(self) -> None:
        """The socket takes more."""
        self._blocked_at_s = 0.0
        if self._session is not None:
            client = self._session.client
            client.writable = True
            if not self._listens:
                self._listen_again(self._session)
            if client.channel is not None:
                client.channel.offer(client)
                self._turn.end()

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone."""
        self._cancel_timer()
        if self in self._broker.connections:
            self._broker.connections.discard(self)
            self._broker.hosts[self._host] -= 1
            if not self._broker.hosts[self._host]:
                del self._broker.hosts[self._host]
        session = self._session
        if session is None:
            return
        self._broker.log.info("PROTOCOL(V2): [%s] exiting ioloop", session.client.remote_address)
        if error is not None:
            self._broker.log.error("client(%s) - %s", session.client.remote_address, error)
        self._broker.clients.pop(session.client.id, None)
        self._broker.authorizer.forget(session.client)
        session.closed()
        self._turn.end()
        self._session = None  # they refer to each other, and the buffers of both must not wait for a collection

    # To the transport, as the client's link

    def write(self, data: bytearray) -> None:
        """Send."""
        if self._transport.is_closing():
            return
        if self._layers is not None:
            self._transport.write(self._layers.send(bytes(data)))
        elif self._descriptor >= 0 and self._transport.get_write_buffer_size() == 0:
            self._send(data)
        else:
            self._transport.write(data)
        if self._agreed is not None:
            self._begin_upgrade(self._agreed)

    def _send(self, data: bytearray) -> None:
        """Hand data to the socket past the transport, which costs more and is for what the socket does not take."""
        try:
            sent = os.write(self._descriptor, data)
        except OSError:
            sent = 0  # the transport meets the same error, if it is one
        if sent < len(data):
            self._transport.write(data[sent:])

    def upgrade(self, outcome: Outcome) -> None:
        """Put layers around the socket once the answer that grants them is out."""
        self._agreed = outcome

    def close(self) -> None:
        """Close once what was written is sent, but do not wait for that for ever."""
        if self._transport.is_closing():
            return
        self._transport.close()
        self._cancel_timer()
        if self._transport.get_write_buffer_size() > 0:
            self._timer = self._loop.call_later(_LINGER_S, self._transport.abort)

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    # The beginning

    def _begin(self, data: bytes) -> Session | None:
        address, host = peer_address(self._transport)
        magic = data[: len(MAGIC)]
        self._prelude = b""
        self._broker.log.info("CLIENT(%s): desired protocol magic '%s'", address, magic.decode("latin-1"))
        self._cancel_timer()
        if magic != MAGIC:
            self._broker.log.error("client(%s) bad protocol magic '%s'", address, magic.decode("latin-1"))
            self._transport.write(_BAD_PROTOCOL)
            self._transport.close()
            return None
        client = self._broker.new_client(address, host, self)
        self._session = Session(self._broker, client)
        self._alive_at_s = self._loop.time()
        self._start_heartbeat(client)
        return self._session

    def _give_up_on_magic(self) -> None:
        self._timer = None
        self._broker.log.error(
            "failed to read protocol version - %s said nothing in time", peer_address(self._transport)[0]
        )
        self._transport.abort()

    # Upgrades

    def _begin_upgrade(self, agreed: Outcome) -> None:
        session = self._session
        assert session is not None
        self._agreed = None
        self._layers = Layers()
        rest = session.take_rest()
        if not agreed.tls:
            self._compress(session, agreed, rest)
            return
        assert self._broker.tls_context is not None
        self._handshake = Handshake(TLSLayer(self._broker.tls_context, server_side=True), agreed)
        self._cancel_timer()
        self._timer = self._loop.call_later(_HANDSHAKE_S, self._drop, session.client, "TLS handshake - i/o timeout")
        self._receive_in_handshake(session, self._handshake, self._layers.push(self._handshake.layer, rest))

    def _receive_layered(self, session: Session, data: bytes) -> None:
        """Bytes from the socket of a connection that has layers, or is getting them."""
        assert self._layers is not None
        pieces = self._layers.receive(data)
        if self._handshake is not None:
            self._receive_in_handshake(session, self._handshake, pieces)
        else:
            self._receive_pieces(session, pieces)

    def _receive_pieces(self, session: Session, pieces: Iterator[bytes]) -> None:
        """What a layer lets through; a little may stand for much, so others get a turn after some of it."""
        assert self._layers is not None
        try:
            for _ in range(_PIECES_PER_TURN):
                piece = next(pieces, None)
                if piece is None or self._transport.is_closing():
                    return
                session.receive(piece)
            self._pieces_left = pieces
            self._transport.pause_reading()
            self._loop.call_soon(self._continue_reading, session)
        except (BadCompression, TLSFailed) as error:
            self._drop(session.client, str(error))
        finally:
            self._send_own(self._layers)

    def _continue_reading(self, session: Session) -> None:
        pieces = self._pieces_left
        if pieces is None or not self._listens or self._transport.is_closing():
            return
        self._pieces_left = None
        self._transport.resume_reading()
        self._receive_pieces(session, pieces)
        self._turn.end()
        if self._blocked_at_s:
            self._listen_less()

    def _listen_less(self) -> None:
        """Answers are not read: take no more commands if there are too many of them, as their number has no bound."""
        if self._listens and self._transport.get_write_buffer_size() > _MAX_UNREAD:
            self._listens = False
            self._transport.pause_reading()

    def _hear_less_often(self) -> None:
        """The client has plenty to do and tells of each message by itself: hear of several together."""
        self._transport.pause_reading()
        self._loop.call_later(_REST_S, self._read_on)

    def _read_on(self) -> None:
        if self._listens and not self._transport.is_closing():
            self._transport.resume_reading()

    def _listen_again(self, session: Session) -> None:
        self._listens = True
        if self._pieces_left is None:
            self._transport.resume_reading()
        else:
            self._loop.call_soon(self._continue_reading, session)

    def _receive_in_handshake(self, session: Session, handshake: Handshake, pieces: Iterator[bytes]) -> None:
        assert self._layers is not None
        try:
            rest = b"".join(pieces)
        except TLSFailed as error:
            self._send_own(self._layers)
            self._drop(session.client, f"TLS handshake - {error}")
            return
        self._send_own(self._layers)
        if handshake.layer.is_done:
            self._handshake = None
            handshake.note(session.client)
            self._start_heartbeat(session.client)
            self._transport.write(self._layers.send(frames.OK))
            self._compress(session, handshake.agreed, rest)

    def _compress(self, session: Session, agreed: Outcome, rest: bytes) -> None:
        """Put on the layer of compression that was agreed on, if any, and go on with the conversation."""
        assert self._layers is not None
        client = session.client
        pieces = iter((rest,)) if rest else iter(())
        if agreed.snappy or agreed.deflate:
            client.snappy, client.deflate = agreed.snappy, agreed.deflate
            layer = Snappy() if agreed.snappy else Deflate(agreed.deflate_level)
            pieces = self._layers.push(layer, rest)
            self._transport.write(self._layers.send(frames.OK))
        session.resume()
        self._receive_pieces(session, pieces)

    def _send_own(self, layers: Layers) -> None:
        output = layers.take_output()
        if output and not self._transport.is_closing():
            self._transport.write(output)

    # Heartbeats and deadlines

    def _start_heartbeat(self, client: Client) -> None:
        self._interval_ns = client.heartbeat_interval_ns
        self._heartbeat_at_s = self._loop.time() + self._interval_ns / _NS_PER_S
        self._schedule()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        """Set the timer to whichever comes first: heartbeat, silence or blockage."""
        self._cancel_timer()
        if self._interval_ns <= 0 or self._transport.is_closing():
            return
        interval_s = self._interval_ns / _NS_PER_S
        when_s = min(self._heartbeat_at_s, self._alive_at_s + 2 * interval_s)
        if self._blocked_at_s:
            when_s = min(when_s, self._blocked_at_s + interval_s)
        self._timer = self._loop.call_later(max(0.0, when_s - self._loop.time()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        assert self._session is not None
        client = self._session.client
        now_s = self._loop.time()
        interval_s = self._interval_ns / _NS_PER_S
        if now_s >= self._alive_at_s + 2 * interval_s:
            self._drop(client, "failed to read command - i/o timeout")
            return
        if self._blocked_at_s and now_s >= self._blocked_at_s + interval_s:
            self._drop(client, "failed to send - i/o timeout")
            return
        if now_s >= self._heartbeat_at_s:
            self._heartbeat_at_s = now_s + interval_s
            client.output += frames.HEARTBEAT
            self._turn.send_to(client)
            self._turn.end()
        self._schedule()

    def _drop(self, client: Client, reason: str) -> None:
        self._broker.log.error("client(%s) - %s", client.remote_address, reason)
        self._transport.abort()
