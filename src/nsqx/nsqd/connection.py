"""The connection between an asyncio transport and a session: carries bytes and the effects of the session.

A connection is closed when no complete command came for two heartbeat intervals, or when its socket took no data for
one interval. There is no session before the magic.

The socket is read only after everything received before is processed, and only while there is no ``PauseReason``. So
the memory used for one client is bounded, and TCP slows the client down.
"""

from __future__ import annotations

import asyncio
import os
from enum import IntFlag
from functools import partial
from typing import TYPE_CHECKING, Any

from nsqx.net.compression import BadCompression
from nsqx.net.peer import keep_alive, peer_address
from nsqx.net.read_pause import ReadPause
from nsqx.net.round_robin import LARGE_CHUNK
from nsqx.net.tls import TLSFailed
from nsqx.nsqd.client import OUTPUT_LIMIT
from nsqx.nsqd.effects import Authenticate, Close, PublishInSlices, RenewRights, Upgrade, WatchRights
from nsqx.nsqd.heartbeat import Heartbeat
from nsqx.nsqd.large_publish import LargePublish
from nsqx.nsqd.session import MAGIC, ClientSession
from nsqx.nsqd.turn import ByteReceiver
from nsqx.nsqd.upgraded_stream import UpgradedStream
from nsqx.wire import frames
from nsqx.wire.batches import BatchSlices

if TYPE_CHECKING:
    from nsqx.errors import ProtocolError
    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.client import Client
    from nsqx.nsqd.effects import Outcome


class PauseReason(IntFlag):
    """The reasons for not reading the socket of a client."""

    OUTPUT_UNREAD = 1  # the client does not read its answers
    UNCONFIRMED_INPUT = 2  # much of what the client published waits for the disk
    WAITS_FOR_EFFECT = 4  # the session waits for the outcome of an effect
    WAITS_TURN = 8  # input is left, or was a large chunk, and waits in the round-robin
    COALESCES_FINS = 16


# Typed in the .pxd.
_OUTPUT_UNREAD = PauseReason.OUTPUT_UNREAD
_UNCONFIRMED_INPUT = PauseReason.UNCONFIRMED_INPUT
_WAITS_FOR_EFFECT = PauseReason.WAITS_FOR_EFFECT
_WAITS_TURN = PauseReason.WAITS_TURN
_COALESCES_FINS = PauseReason.COALESCES_FINS
# With one of these, input that was received is not processed either.
_STOPS_INPUT = _OUTPUT_UNREAD | _UNCONFIRMED_INPUT | _WAITS_FOR_EFFECT

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


class ClientConnection(ByteReceiver):
    """The asyncio protocol of one TCP client. It has no base class of asyncio, which allows it to be compiled."""

    __slots__ = (
        "_broker",
        "_descriptor",
        "_heartbeat",
        "_host",
        "_loop",
        "_pause",
        "_prelude",
        "_round_robin",
        "_seen_commands",
        "_session",
        "_stream",
        "_transport",
        "_turn",
        "_unconfirmed_bytes",
    )

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        self._broker = broker
        self._turn = broker.turn
        self._round_robin = broker.round_robin
        self._loop = loop
        self._transport: Any = None
        self._descriptor = -1
        self._session: ClientSession | None = None
        self._stream: UpgradedStream | None = None  # after an upgrade
        self._pause = ReadPause(None)
        self._heartbeat = Heartbeat(self, loop)
        self._host = ""
        self._prelude = b""
        self._seen_commands = 0
        # Bytes received since an answer began to wait for the disk.
        self._unconfirmed_bytes = 0

    # From the transport

    def connection_made(self, transport: Any) -> None:
        """Accept or refuse a new client."""
        self._transport = transport
        self._pause = ReadPause(transport)
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
        self._heartbeat.set_deadline(self._broker.client_timeout_s, self._give_up_on_magic)

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
            self._note_unconfirmed(len(data))
        if len(data) >= _LARGE_CHUNK or self._has_input(session):
            self._wait_turn()
        if not session.client.writable:
            self._pause_if_output_unread()
        elif len(data) <= _FEW_FINS_SIZE and session.client.in_flight_count >= _MANY_IN_FLIGHT and self._stream is None:
            self._coalesce_fins()

    def receive(self, data: bytes) -> None:
        """Process bytes for the session, within a turn."""
        session = self._session
        assert session is not None
        if self._stream is None:
            session.receive(data)
        else:
            self._receive_layered(session, self._stream, data)
        if session.effect is not None:
            self._carry_out(session)

    def _note_commands(self, session: ClientSession) -> None:
        """Note complete commands as a sign of life."""
        self._seen_commands = session.command_count
        self._heartbeat.note_alive()
        if session.client.heartbeat_interval_ns != self._heartbeat.interval_ns:
            self._start_heartbeat(session.client)

    def work(self) -> None:
        """Process the next slice of the received input; called by the round-robin."""
        session = self._session
        if session is None or self._transport.is_closing():
            return
        if not self._pause.reasons & _STOPS_INPUT:
            if session.has_more:
                session.proceed()
            elif self._stream is not None:
                self._receive_pieces(session, self._stream)
            if session.effect is not None:
                self._carry_out(session)
            if session.command_count != self._seen_commands:
                self._note_commands(session)
            if not session.client.writable:
                self._pause_if_output_unread()
        if self._has_input(session) and not self._pause.reasons & _STOPS_INPUT:
            self._round_robin.join(self)
        else:
            self._pause.remove(_WAITS_TURN)

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
        if self._session is not None:
            self._session.client.writable = False
            self._heartbeat.note_blocked()

    def resume_writing(self) -> None:
        """Resume deliveries: the socket takes data again."""
        session = self._session
        if session is not None:
            client = session.client
            client.writable = True
            self._heartbeat.note_unblocked()
            self._end_pause(session, _OUTPUT_UNREAD)
            if client.channel is not None:
                self._turn.run(client.channel.add_if_ready, client)

    def connection_lost(self, error: Exception | None) -> None:
        """Clean up after the connection is closed."""
        self._heartbeat.stop()
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
        if self._stream is not None:
            self._transport.write(self._stream.encode(bytes(data)))
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
        self._heartbeat.set_deadline(_LINGER_S, self._transport.abort)
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    # The magic

    def _begin(self, data: bytes) -> ClientSession | None:
        address, host = peer_address(self._transport)
        magic = data[: len(MAGIC)]
        self._prelude = b""
        self._broker.log.info("CLIENT(%s): desired protocol magic '%s'", address, magic.decode("latin-1"))
        if magic != MAGIC:
            self._broker.log.error("client(%s) bad protocol magic '%s'", address, magic.decode("latin-1"))
            self._transport.write(_BAD_PROTOCOL)
            self.close()
            return None
        client = self._broker.new_client(address, host, self)
        self._session = ClientSession(self._broker, client)
        self._heartbeat.note_alive()
        self._start_heartbeat(client)
        return self._session

    def _give_up_on_magic(self) -> None:
        self._broker.log.error(
            "failed to read protocol version - %s sent no magic in time", peer_address(self._transport)[0]
        )
        self._transport.abort()

    # Effects of the session

    def _carry_out(self, session: ClientSession) -> None:
        """Carry out the effect at which the session has stopped, if any."""
        effect = session.take_effect()
        client = session.client
        if isinstance(effect, Close):
            self._turn.close(client)
            return
        if effect is not None:
            self._pause.add(_WAITS_FOR_EFFECT)
        if isinstance(effect, Upgrade):
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
        if session is not None:
            self._turn.run(self._continue, session, outcome)
            self._heartbeat.note_alive()
            if not session.is_waiting:
                self._end_pause(session, _WAITS_FOR_EFFECT)

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
        """Add the layers. Called after the answer that announces them has been sent."""
        session = self._session
        if session is None:
            return
        self._stream = UpgradedStream(upgrade, self._broker.tls_context)
        if upgrade.tls:
            self._heartbeat.set_deadline(_HANDSHAKE_S, self.drop, "TLS handshake - i/o timeout")
            self._pause.remove(_WAITS_FOR_EFFECT)  # the TLS layer needs the bytes, not the session
        self._continue_upgrade(session, self._stream, session.take_rest())

    def _continue_upgrade(self, session: ClientSession, stream: UpgradedStream, data: bytes) -> None:
        try:
            stream.feed(data)
        except TLSFailed as error:
            self._send_own(stream)
            self.drop(f"TLS handshake - {error}")
            return
        self._send_own(stream)
        if stream.is_ready:
            stream.note(session.client)
            self._start_heartbeat(session.client)
            self._resolve(None)

    def _receive_layered(self, session: ClientSession, stream: UpgradedStream, data: bytes) -> None:
        """Process bytes from the socket of an upgraded connection."""
        if stream.is_ready:
            stream.feed(data)
            self._receive_pieces(session, stream)
        else:
            self._continue_upgrade(session, stream, data)

    def _receive_pieces(self, session: ClientSession, stream: UpgradedStream) -> None:
        """Pass at most one slice of decoded input on: a few compressed bytes can become very many."""
        size = 0
        try:
            while size < _LARGE_CHUNK and not session.has_more and not session.is_waiting:
                piece = stream.next_piece()
                if piece is None or self._transport.is_closing():
                    break
                size += len(piece)
                session.receive(piece)
                if session.client.output.is_held:
                    self._note_unconfirmed(len(piece))
        except (BadCompression, TLSFailed) as error:
            self.drop(str(error))
        self._send_own(stream)

    def _send_own(self, stream: UpgradedStream) -> None:
        output = stream.take_output()
        if output and not self._transport.is_closing():
            self._transport.write(output)

    # Backpressure: whether the socket is read

    def _has_input(self, session: ClientSession) -> bool:
        """True if received input is left to process."""
        return session.has_more or (self._stream is not None and self._stream.has_input)

    def _wait_turn(self) -> None:
        """Process the input that is left in the round-robin, and read after that."""
        if not self._pause.reasons & _WAITS_TURN:
            self._pause.add(_WAITS_TURN)
            self._round_robin.join(self)

    def _end_pause(self, session: ClientSession, reason: int) -> None:
        """Remove a reason for the pause. Input that is left is processed before more is read."""
        if self._has_input(session) and not self._pause.reasons & _STOPS_INPUT & ~reason:
            self._wait_turn()
        self._pause.remove(reason)

    def _note_unconfirmed(self, size: int) -> None:
        """Count input while answers wait for the disk; stop reading if there is too much."""
        self._unconfirmed_bytes += size
        if self._unconfirmed_bytes > _MAX_UNCONFIRMED_BYTES:
            self._pause.add(_UNCONFIRMED_INPUT)

    def _note_confirmed(self) -> None:
        """Reset the count after answers were sent; read again if no answer waits for the disk."""
        session = self._session
        if session is not None and not session.client.output.is_held:
            self._unconfirmed_bytes = 0
            self._end_pause(session, _UNCONFIRMED_INPUT)

    def _pause_if_output_unread(self) -> None:
        """Stop taking commands if too much output is unread: the number of answers would have no bound."""
        if self._transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
            self._pause.add(_OUTPUT_UNREAD)

    def _coalesce_fins(self) -> None:
        """Coalesce single FINs of a client that has many messages in flight."""
        if not self._pause.reasons & _COALESCES_FINS:
            self._pause.add(_COALESCES_FINS)
            # Not self._pause.remove: Cython converts a typed method of another class wrongly, and GCC 14 refuses that.
            self._loop.call_later(_COALESCE_S, self._end_coalescing)

    def _end_coalescing(self) -> None:
        self._pause.remove(_COALESCES_FINS)

    # Heartbeats

    def _start_heartbeat(self, client: Client) -> None:
        """Send heartbeats at the interval of the client. A TLS handshake and the close have their own deadlines."""
        is_in_handshake = self._stream is not None and not self._stream.is_ready
        if not is_in_handshake and not self._transport.is_closing():
            self._heartbeat.start(client.heartbeat_interval_ns)

    def send_heartbeat(self) -> None:
        """Send a heartbeat."""
        if self._session is not None:
            self._turn.run(self._add_heartbeat, self._session.client)

    def _add_heartbeat(self, client: Client) -> None:
        client.send_heartbeat()
        self._turn.send_to(client)

    def delays_input(self) -> bool:
        """True if commands of the client may wait here or in its socket. Unread output is the client's own fault."""
        return self._pause.reasons != 0 and not self._pause.reasons & _OUTPUT_UNREAD

    def drop(self, reason: str) -> None:
        """Close at once, and log why."""
        if self._session is not None:
            self._broker.log.error("client(%s) - %s", self._session.client.remote_address, reason)
        self._transport.abort()
