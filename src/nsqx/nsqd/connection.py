"""The connection between an asyncio transport and a session: bytes in, bytes out, heartbeats and deadlines.

A connection is closed when no complete command came for two heartbeat intervals, or when its socket took no data for
one interval. There is no session before the magic.

The socket is read only after everything received before is processed. It is not read while slices of input wait for
their turn in the round-robin, while the session waits for an answer from elsewhere, while much of what the client
published waits for the disk, or while the client does not read its answers. So the memory used for one client is
bounded, and TCP slows the client down.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from nsqx.net.compression import BadCompression, Deflate
from nsqx.net.layers import Layers
from nsqx.net.peer import keep_alive, peer_address
from nsqx.net.round_robin import LARGE_CHUNK
from nsqx.net.snappy import Snappy
from nsqx.net.tls import TLSFailed, TLSLayer
from nsqx.nsqd.client import OUTPUT_LIMIT
from nsqx.nsqd.effects import Authenticate, Close, PublishInSlices, RenewRights, Upgrade, WatchRights
from nsqx.nsqd.handshake import Handshake
from nsqx.nsqd.large_publish import LargePublish
from nsqx.nsqd.session import MAGIC, ClientSession
from nsqx.units import NS_PER_S
from nsqx.wire import frames
from nsqx.wire.batches import BatchSlices

if TYPE_CHECKING:
    from nsqx.errors import ProtocolError
    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.client import Client
    from nsqx.nsqd.effects import Outcome

_BAD_PROTOCOL = frames.encode_frame(frames.ERROR, b"E_BAD_PROTOCOL")
# How long a closing connection may take to send its remaining output; it has no heartbeat deadline any more.
_LINGER_S = 5.0
_HANDSHAKE_S = 5.0
# A client with so much unread output is not read from until it reads again.
_MAX_UNREAD_BYTES = 4 * OUTPUT_LIMIT
_LARGE_CHUNK = LARGE_CHUNK
# A client that has sent so much since its oldest unconfirmed publish is not read from until the disk confirms it.
_MAX_UNCONFIRMED_BYTES = 4 * 1024 * 1024
# A consumer with this many messages in flight that sends only a few FINs at a time is read again after 1 ms. It cannot
# run out of messages in that time. Reading, delivering and sending for every single FIN costs twice as much.
_MANY_IN_FLIGHT = 2048
_FEW_FINS_SIZE = 4 * len("FIN 0123456789abcdef\n")
_COALESCE_S = 0.001


class ClientConnection:
    """The asyncio protocol of one TCP client. It has no base class, which allows it to be compiled."""

    __slots__ = (
        "_accepts_commands",
        "_alive_at_s",
        "_blocked_at_s",
        "_broker",
        "_descriptor",
        "_handshake",
        "_heartbeat_at_s",
        "_host",
        "_interval_ns",
        "_is_coalescing",
        "_is_reading",
        "_layers",
        "_loop",
        "_pieces_left",
        "_prelude",
        "_round_robin",
        "_seen_commands",
        "_session",
        "_timer",
        "_transport",
        "_turn",
        "_unconfirmed_bytes",
        "_waits_turn",
    )

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        self._broker = broker
        self._turn = broker.turn
        self._round_robin = broker.round_robin
        self._loop = loop
        self._transport: Any = None
        self._descriptor = -1
        self._session: ClientSession | None = None
        self._host = ""
        self._prelude = b""
        self._seen_commands = 0
        self._interval_ns = 0
        self._alive_at_s = 0.0
        self._heartbeat_at_s = 0.0
        self._blocked_at_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        # The active layers, and the running handshake.
        self._layers: Layers | None = None
        self._handshake: Handshake | None = None
        # Reasons for not reading the socket: unread answers, input waiting in the round-robin, coalescing of FINs.
        self._accepts_commands = True
        self._waits_turn = False
        self._is_coalescing = False
        self._is_reading = True
        # Bytes received since an answer began to wait for the disk.
        self._unconfirmed_bytes = 0
        # Input that the layers have not unwrapped yet.
        self._pieces_left: Iterator[bytes] | None = None

    # From the transport

    def connection_made(self, transport: Any) -> None:
        """Accept or refuse a new client."""
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
        """Process bytes from the client."""
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
        self._turn.receive(self, data)
        if session.command_count != self._seen_commands:
            self._note_commands(session)
        if session.client.output.is_held:
            self._note_unconfirmed(session, len(data))
        if session.has_more or session.is_waiting or self._pieces_left is not None or len(data) >= _LARGE_CHUNK:
            self._read_later(session)
        if self._blocked_at_s:
            self._pause_if_output_unread(session)
        elif len(data) <= _FEW_FINS_SIZE and session.client.in_flight_count >= _MANY_IN_FLIGHT and self._layers is None:
            self._coalesce_fins(session)

    def receive(self, data: bytes) -> None:
        """Process bytes for the session, within a turn."""
        session = self._session
        assert session is not None
        if self._layers is None:
            session.receive(data)
        else:
            self._receive_layered(session, data)
        if session.effect is not None:
            self._carry_out(session)

    def _note_commands(self, session: ClientSession) -> None:
        """Note complete commands as a sign of life."""
        self._seen_commands = session.command_count
        self._alive_at_s = self._loop.time()
        # A handshake has its own deadline, and heartbeats begin after it.
        if session.client.heartbeat_interval_ns != self._interval_ns and self._handshake is None:
            self._start_heartbeat(session.client)

    def work(self) -> None:
        """Process the next slice of the received input; called by the round-robin."""
        self._waits_turn = False
        session = self._session
        if session is None or self._transport.is_closing():
            return
        if self._may_proceed(session):
            if session.has_more:
                session.proceed()
            elif self._pieces_left is not None:
                self._receive_pieces(session, self._pieces_left)
            if session.effect is not None:
                self._carry_out(session)
            if session.command_count != self._seen_commands:
                self._note_commands(session)
            if self._blocked_at_s:
                self._pause_if_output_unread(session)
        self._read_or_wait(session)

    def eof_received(self) -> bool:
        """Handle the end of input; the session answers the remaining commands and closes."""
        if self._session is None:
            return False
        self._turn.run(self._receive_end, self._session)
        return True

    def _receive_end(self, session: ClientSession) -> None:
        session.receive_end()
        self._carry_out(session)

    def pause_writing(self) -> None:
        """Stop deliveries: the socket takes no more data for now."""
        self._blocked_at_s = self._loop.time()
        if self._session is not None:
            self._session.client.writable = False
            self._schedule()

    def resume_writing(self) -> None:
        """Resume deliveries: the socket takes data again."""
        self._blocked_at_s = 0.0
        if self._session is not None:
            client = self._session.client
            client.writable = True
            self._accepts_commands = True
            self._read_or_wait(self._session)
            if client.channel is not None:
                self._turn.run(client.channel.add_if_ready, client)

    def connection_lost(self, error: Exception | None) -> None:
        """Clean up after the connection is closed."""
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
        self._turn.run(session.closed)
        self._session = None  # breaks the reference cycle, which frees the buffers without a garbage collection

    # To the transport, as the client's link

    def write(self, data: bytearray) -> None:
        """Send ``data``."""
        if self._transport.is_closing():
            return
        if self._layers is not None:
            self._transport.write(self._layers.send(bytes(data)))
        elif self._descriptor >= 0 and self._transport.get_write_buffer_size() == 0:
            self._send(data)
        else:
            self._transport.write(data)
        if self._unconfirmed_bytes:
            self._note_confirmed()

    def _send(self, data: bytearray) -> None:
        """Write to the socket directly, which is cheaper; the transport gets the data that the socket does not take."""
        try:
            sent = os.write(self._descriptor, data)
        except OSError:
            sent = 0  # the transport will report a real error
        if sent < len(data):
            self._transport.write(data[sent:])

    def close(self) -> None:
        """Close after everything written has been sent, or after a time limit."""
        if self._transport.is_closing():
            return
        self._transport.close()
        self._cancel_timer()
        if self._transport.get_write_buffer_size() > 0:
            self._timer = self._loop.call_later(_LINGER_S, self._transport.abort)

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    # The magic

    def _begin(self, data: bytes) -> ClientSession | None:
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
        self._session = ClientSession(self._broker, client)
        self._alive_at_s = self._loop.time()
        self._start_heartbeat(client)
        return self._session

    def _give_up_on_magic(self) -> None:
        self._timer = None
        self._broker.log.error(
            "failed to read protocol version - %s sent no magic in time", peer_address(self._transport)[0]
        )
        self._transport.abort()

    # Effects of the session

    def _carry_out(self, session: ClientSession) -> None:
        """Carry out the effect at which the session has stopped."""
        effect = session.take_effect()
        client = session.client
        if isinstance(effect, Close):
            self._turn.close(client)
        elif isinstance(effect, Upgrade):
            client.when_sent(partial(self._begin_upgrade, effect))
        elif isinstance(effect, Authenticate):
            self._broker.authorizer.authenticate(client, effect.secret, self._resolve)
        elif isinstance(effect, RenewRights):
            self._broker.authorizer.refresh(client, self._resolve)
        elif isinstance(effect, WatchRights):
            self._broker.authorizer.watch(client, effect.topic_name, effect.channel_name, self._revoke)
            self._resolve(None)
        elif isinstance(effect, PublishInSlices):
            slices = BatchSlices(effect.items)
            LargePublish(self._broker, effect.topic, slices.next(), slices, self._resolve)

    def _resolve(self, outcome: Outcome) -> None:
        """Let the session continue. The wait does not count as silence, because the socket was not read."""
        session = self._session
        if session is None:
            return
        self._turn.run(self._continue, session, outcome)
        self._alive_at_s = self._loop.time()
        self._read_or_wait(session)

    def _continue(self, session: ClientSession, outcome: Outcome) -> None:
        session.resolve(outcome)
        self._carry_out(session)

    def _revoke(self, error: ProtocolError) -> None:
        if self._session is not None:
            self._turn.run(self._end_revoked, self._session, error)

    def _end_revoked(self, session: ClientSession, error: ProtocolError) -> None:
        session.revoke(error)
        self._carry_out(session)

    # Upgrades

    def _begin_upgrade(self, upgrade: Upgrade) -> None:
        session = self._session
        if session is None:
            return
        self._layers = Layers()
        rest = session.take_rest()
        if not upgrade.tls:
            self._compress(session, upgrade, rest)
            return
        assert self._broker.tls_context is not None
        self._handshake = Handshake(TLSLayer(self._broker.tls_context, server_side=True), upgrade)
        self._cancel_timer()
        self._timer = self._loop.call_later(_HANDSHAKE_S, self._drop, session.client, "TLS handshake - i/o timeout")
        self._receive_in_handshake(session, self._handshake, self._layers.push(self._handshake.layer, rest))
        self._update_reading(session)

    def _receive_layered(self, session: ClientSession, data: bytes) -> None:
        """Process bytes from the socket of a connection that has layers or is in a TLS handshake."""
        assert self._layers is not None
        pieces = self._layers.receive(data)
        if self._pieces_left is not None:
            pieces = chain(self._pieces_left, pieces)
        if self._handshake is not None:
            self._receive_in_handshake(session, self._handshake, pieces)
        else:
            self._receive_pieces(session, pieces)

    def _receive_pieces(self, session: ClientSession, pieces: Iterator[bytes]) -> None:
        """Pass at most one slice of unwrapped data on: a few compressed bytes can become very many."""
        assert self._layers is not None
        self._pieces_left = pieces
        size = 0
        try:
            while size < _LARGE_CHUNK and not session.has_more and not session.is_waiting:
                piece = next(pieces, None)
                if piece is None or self._transport.is_closing():
                    self._pieces_left = None
                    return
                size += len(piece)
                session.receive(piece)
                if session.client.output.is_held:
                    self._unconfirmed_bytes += len(piece)
        except (BadCompression, TLSFailed) as error:
            self._pieces_left = None
            self._drop(session.client, str(error))
        finally:
            self._send_own(self._layers)

    # Backpressure: whether the socket is read

    def _read_later(self, session: ClientSession) -> None:
        """Stop reading: there is more input than one slice, or the session waits."""
        if not session.is_waiting and not self._waits_turn:
            self._waits_turn = True
            self._round_robin.join(self)
        self._update_reading(session)

    def _read_or_wait(self, session: ClientSession) -> None:
        """Join the round-robin if input is left; otherwise read."""
        has_input = session.has_more or self._pieces_left is not None
        if has_input and self._may_proceed(session) and not self._waits_turn:
            self._waits_turn = True
            self._round_robin.join(self)
        self._update_reading(session)

    def _may_proceed(self, session: ClientSession) -> bool:
        return self._accepts_commands and not session.is_waiting and self._unconfirmed_bytes <= _MAX_UNCONFIRMED_BYTES

    def _note_unconfirmed(self, session: ClientSession, size: int) -> None:
        """Count input while answers wait for the disk; stop reading if there is too much."""
        self._unconfirmed_bytes += size
        if self._unconfirmed_bytes > _MAX_UNCONFIRMED_BYTES:
            self._update_reading(session)

    def _note_confirmed(self) -> None:
        """Reset the count after answers were sent; read again if no answer waits for the disk."""
        session = self._session
        if session is not None and not session.client.output.is_held:
            had_to_wait = self._unconfirmed_bytes > _MAX_UNCONFIRMED_BYTES
            self._unconfirmed_bytes = 0
            if had_to_wait:
                self._read_or_wait(session)

    def _update_reading(self, session: ClientSession) -> None:
        has_input = session.has_more or self._pieces_left is not None
        is_held = self._waits_turn or self._is_coalescing or not self._accepts_commands or has_input
        is_held = is_held or self._unconfirmed_bytes > _MAX_UNCONFIRMED_BYTES
        # During a handshake the TLS layer needs the bytes, not the session.
        reads = not is_held and (not session.is_waiting or self._handshake is not None)
        if reads != self._is_reading and not self._transport.is_closing():
            self._is_reading = reads
            if reads:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _pause_if_output_unread(self, session: ClientSession) -> None:
        """Stop taking commands if too much output is unread: the number of answers would have no bound."""
        if self._accepts_commands and self._transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
            self._accepts_commands = False
            self._update_reading(session)

    def _coalesce_fins(self, session: ClientSession) -> None:
        """Coalesce single FINs of a client that has many messages in flight."""
        if not self._is_coalescing:
            self._is_coalescing = True
            self._update_reading(session)
            self._loop.call_later(_COALESCE_S, self._end_coalescing)

    def _end_coalescing(self) -> None:
        self._is_coalescing = False
        if self._session is not None:
            self._update_reading(self._session)

    def _receive_in_handshake(self, session: ClientSession, handshake: Handshake, pieces: Iterator[bytes]) -> None:
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
            self._compress(session, handshake.upgrade, rest)

    def _compress(self, session: ClientSession, upgrade: Upgrade, rest: bytes) -> None:
        """Add the negotiated compression layer, if any, and let the session continue."""
        assert self._layers is not None
        client = session.client
        pieces = iter((rest,))
        if upgrade.snappy or upgrade.deflate:
            client.snappy, client.deflate = upgrade.snappy, upgrade.deflate
            layer = Snappy() if upgrade.snappy else Deflate(upgrade.deflate_level)
            pieces = self._layers.push(layer, rest)
            self._transport.write(self._layers.send(frames.OK))
        if rest:
            self._pieces_left = pieces
        self._resolve(None)

    def _send_own(self, layers: Layers) -> None:
        output = layers.take_output()
        if output and not self._transport.is_closing():
            self._transport.write(output)

    # Heartbeats and deadlines

    def _start_heartbeat(self, client: Client) -> None:
        self._interval_ns = client.heartbeat_interval_ns
        self._heartbeat_at_s = self._loop.time() + self._interval_ns / NS_PER_S
        self._schedule()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        """Set the timer to the earliest of heartbeat, read timeout and write timeout."""
        self._cancel_timer()
        if self._interval_ns <= 0 or self._transport.is_closing():
            return
        interval_s = self._interval_ns / NS_PER_S
        when_s = min(self._heartbeat_at_s, self._alive_at_s + 2 * interval_s)
        if self._blocked_at_s:
            when_s = min(when_s, self._blocked_at_s + interval_s)
        self._timer = self._loop.call_later(max(0.0, when_s - self._loop.time()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        assert self._session is not None
        client = self._session.client
        now_s = self._loop.time()
        interval_s = self._interval_ns / NS_PER_S
        if not self._is_reading and self._accepts_commands:
            self._alive_at_s = now_s  # its commands wait here or in the socket
        if now_s >= self._alive_at_s + 2 * interval_s:
            self._drop(client, "failed to read command - i/o timeout")
            return
        if self._blocked_at_s and now_s >= self._blocked_at_s + interval_s:
            self._drop(client, "failed to send - i/o timeout")
            return
        if now_s >= self._heartbeat_at_s:
            self._heartbeat_at_s = now_s + interval_s
            self._turn.run(self._send_heartbeat, client)
        self._schedule()

    def _send_heartbeat(self, client: Client) -> None:
        client.send_heartbeat()
        self._turn.send_to(client)

    def _drop(self, client: Client, reason: str) -> None:
        self._broker.log.error("client(%s) - %s", client.remote_address, reason)
        self._transport.abort()
