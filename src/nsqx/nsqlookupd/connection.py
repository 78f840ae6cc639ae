"""One TCP connection: connects an asyncio transport to a session, with deadlines.

Go's nsqlookupd waits forever on every connection. Here a connection without IDENTIFY is closed after a minute of
silence, or after inactive-producer-timeout if that is longer. After IDENTIFY a connection may be silent: it is no
longer listed after inactive-producer-timeout, and TCP keepalive, with Go's values, detects a dead peer. A client that
does not read its answers is not read from, and is closed after a minute. A client that has sent more than one slice of
input is not read from until the round-robin has processed it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from nsqx.net.peer import keep_alive, peer_address
from nsqx.net.read_pause import ReadPause
from nsqx.net.round_robin import LARGE_CHUNK
from nsqx.nsqlookupd.session import PeerSession
from nsqx.units import NS_PER_S

if TYPE_CHECKING:
    from nsqx.nsqlookupd.lookupd import Lookupd

STRANGER_TIMEOUT_S = 60.0
BLOCKED_TIMEOUT_S = 60.0
# Time for a closing connection to send its remaining output.
_LINGER_S = 5.0
# Reasons for not reading the socket: the client does not read its answers; input waits in the round-robin.
_OUTPUT_UNREAD = 1
_WAITS_TURN = 2


class LookupdConnection(asyncio.Protocol):
    """The asyncio protocol of one TCP client."""

    def __init__(self, lookupd: Lookupd, loop: asyncio.AbstractEventLoop) -> None:
        self._lookupd = lookupd
        self._loop = loop
        self._identify_timeout_s = max(STRANGER_TIMEOUT_S, lookupd.options.inactive_producer_timeout / NS_PER_S)
        self._transport: asyncio.Transport | None = None
        self._session: PeerSession | None = None
        self._pause = ReadPause(None)
        self._timer: asyncio.TimerHandle | None = None
        self.gone: asyncio.Future[None] = loop.create_future()
        """Completed when the connection is closed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the session of a new client."""
        self._transport = cast("asyncio.Transport", transport)
        self._pause = ReadPause(transport)
        self._lookupd.connections.add(self)
        self._lookupd.counts.connections += 1
        keep_alive(transport)
        self._session = PeerSession(self._lookupd, peer_address(transport)[0])
        self._set_deadline()

    def data_received(self, data: bytes) -> None:
        """Process received bytes."""
        assert self._session is not None
        self._send(self._session.receive(data))
        if self._session.has_more or len(data) >= LARGE_CHUNK:
            self._wait_turn()
        self._settle()

    def work(self) -> None:
        """Process the next slice of the input, as a member of the round-robin."""
        assert self._transport is not None
        assert self._session is not None
        if self._transport.is_closing() or self._session.ended:
            return
        if self._session.has_more and not self._is_blocked():
            self._send(self._session.proceed())
        if self._session.has_more and not self._is_blocked():
            self._lookupd.round_robin.join(self)
        else:
            self._pause.remove(_WAITS_TURN)
        self._settle()

    def _settle(self) -> None:
        assert self._session is not None
        if self._session.ended:
            self._finish()
        else:
            self._set_deadline()

    def _wait_turn(self) -> None:
        """Process the input that is left in the round-robin, and read after that."""
        if not self._pause.reasons & _WAITS_TURN:
            self._pause.add(_WAITS_TURN)
            self._lookupd.round_robin.join(self)

    def _is_blocked(self) -> bool:
        return bool(self._pause.reasons & _OUTPUT_UNREAD)

    def eof_received(self) -> bool:
        """Handle the end of input; the transport closes after sending the remaining output."""
        assert self._session is not None
        self._send(self._session.receive_end())
        self._session.close("EOF")
        self._finish()
        return False

    def pause_writing(self) -> None:
        """Stop reading, so that answers do not accumulate."""
        assert self._transport is not None
        self._pause.add(_OUTPUT_UNREAD)
        if not self._transport.is_closing():
            self._set_deadline()

    def resume_writing(self) -> None:
        """Process the input that is left, and read again."""
        assert self._transport is not None
        assert self._session is not None
        if self._session.has_more and not self._transport.is_closing():
            self._wait_turn()
        self._pause.remove(_OUTPUT_UNREAD)
        if not self._transport.is_closing():
            self._settle()

    def connection_lost(self, error: Exception | None) -> None:
        """End the session of a closed connection."""
        assert self._session is not None
        self._cancel_timer()
        self._session.close("EOF" if error is None else str(error))
        self._lookupd.connections.discard(self)
        if not self.gone.done():
            self.gone.set_result(None)

    def close(self) -> None:
        """Close the connection at shutdown, after sending the answers."""
        assert self._session is not None
        self._session.close("use of closed network connection")
        self._finish()

    def abort(self) -> None:
        """Close the connection at once."""
        assert self._transport is not None
        self._transport.abort()

    def _send(self, data: bytes) -> None:
        assert self._transport is not None
        if data:
            self._transport.write(data)

    def _finish(self) -> None:
        assert self._transport is not None
        self._cancel_timer()
        self._transport.close()
        if self._transport.get_write_buffer_size() > 0:
            self._timer = self._loop.call_later(_LINGER_S, self._transport.abort)

    def _set_deadline(self) -> None:
        """Set the deadline for blocked output or for IDENTIFY; none otherwise."""
        assert self._session is not None
        self._cancel_timer()
        if self._is_blocked():
            self._timer = self._loop.call_later(BLOCKED_TIMEOUT_S, self._time_out)
        elif self._session.peer is None:
            self._timer = self._loop.call_later(self._identify_timeout_s, self._time_out)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        self._timer = None
        assert self._session is not None
        self._session.close("i/o timeout")
        self.abort()
