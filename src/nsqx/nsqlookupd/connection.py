"""Between an asyncio transport and a session: bytes in, bytes out, deadlines.

Go's nsqlookupd waits for ever on every connection. Here a connection that has not identified itself is closed after a
minute of silence, or after inactive-producer-timeout if that is longer. One that has may be silent as long as it likes:
it is no longer shown after inactive-producer-timeout, and TCP keepalive, with Go's numbers, finds out whether the other
end still exists. A client that does not take its answers is not read from meanwhile, and closed after a minute. Nor is
one that has sent more than is handled at once, until it has had its turns in the round-robin.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from nsqx.net.peer import keep_alive, peer_address
from nsqx.net.round_robin import LARGE_CHUNK
from nsqx.nsqlookupd.session import PeerSession
from nsqx.units import NS_PER_S

if TYPE_CHECKING:
    from nsqx.nsqlookupd.lookupd import Lookupd

STRANGER_TIMEOUT_S = 60.0
BLOCKED_TIMEOUT_S = 60.0
# How long a closing connection may take to send what it has left.
_LINGER_S = 5.0


class LookupdConnection(asyncio.Protocol):
    """The asyncio protocol of one TCP client."""

    def __init__(self, lookupd: Lookupd, loop: asyncio.AbstractEventLoop) -> None:
        self._lookupd = lookupd
        self._loop = loop
        self._stranger_timeout_s = max(STRANGER_TIMEOUT_S, lookupd.options.inactive_producer_timeout / NS_PER_S)
        self._transport: asyncio.Transport | None = None
        self._session: PeerSession | None = None
        self._blocked = False
        self._waits_turn = False
        self._is_reading = True
        self._timer: asyncio.TimerHandle | None = None
        self.gone: asyncio.Future[None] = loop.create_future()
        """Done when the connection is."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast("asyncio.Transport", transport)
        self._lookupd.connections.add(self)
        self._lookupd.counts.connections += 1
        keep_alive(transport)
        self._session = PeerSession(self._lookupd, peer_address(transport)[0])
        self._set_deadline()

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        assert self._session is not None
        self._send(self._session.receive(data))
        self._settle(is_large=len(data) >= LARGE_CHUNK)

    def work(self) -> None:
        """Handle the next slice of what was received, as a member of the round-robin."""
        assert self._transport is not None
        assert self._session is not None
        self._waits_turn = False
        if self._transport.is_closing() or self._session.ended:
            return
        if self._session.has_more and not self._blocked:
            self._send(self._session.proceed())
        self._settle()

    def _settle(self, *, is_large: bool = False) -> None:
        """See what comes next; after a large chunk that is another turn, whatever was in it."""
        assert self._session is not None
        if self._session.ended:
            self._finish()
            return
        if (self._session.has_more or is_large) and not self._blocked and not self._waits_turn:
            self._waits_turn = True
            self._lookupd.round_robin.join(self)
        self._update_reading()
        self._set_deadline()

    def _update_reading(self) -> None:
        assert self._transport is not None
        assert self._session is not None
        reads = not self._blocked and not self._waits_turn and not self._session.has_more
        if reads != self._is_reading and not self._transport.is_closing():
            self._is_reading = reads
            if reads:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def eof_received(self) -> bool:
        """The client sends no more; the transport closes once it has sent what is left."""
        assert self._session is not None
        self._send(self._session.receive_end())
        self._session.close("EOF")
        self._finish()
        return False

    def pause_writing(self) -> None:
        """The socket takes no more for now: read no more either, or answers would pile up."""
        assert self._transport is not None
        self._blocked = True
        if not self._transport.is_closing():
            self._update_reading()
            self._set_deadline()

    def resume_writing(self) -> None:
        """The socket takes more."""
        assert self._transport is not None
        self._blocked = False
        if not self._transport.is_closing():
            self._settle()

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone."""
        assert self._session is not None
        self._cancel_timer()
        self._session.close("EOF" if error is None else str(error))
        self._lookupd.connections.discard(self)
        if not self.gone.done():
            self.gone.set_result(None)

    def close(self) -> None:
        """End the connection at shutdown, when what was answered is sent."""
        assert self._session is not None
        self._session.close("use of closed network connection")
        self._finish()

    def abort(self) -> None:
        """End the connection at once."""
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
        """From now on so much patience as this client has earned."""
        assert self._session is not None
        self._cancel_timer()
        if self._blocked:
            self._timer = self._loop.call_later(BLOCKED_TIMEOUT_S, self._give_up)
        elif self._session.peer is None:
            self._timer = self._loop.call_later(self._stranger_timeout_s, self._give_up)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        assert self._session is not None
        self._session.close("i/o timeout")
        self.abort()
