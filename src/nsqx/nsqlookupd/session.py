"""The protocol of one nsqd's connection to nsqlookupd: bytes in, answers out. No sockets and no timers.

Every error is fatal: its text is the last answer, and the peer leaves the registry at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsqx.errors import ProtocolError
from nsqx.gotext import format_duration
from nsqx.names import is_valid_name
from nsqx.nsqlookupd.lookupd import on_one_line
from nsqx.nsqlookupd.registry import Peer
from nsqx.wire.gojson import InvalidJSON
from nsqx.wire.lookup import (
    MAGIC,
    MAX_IDENTIFY_SIZE,
    OK,
    LookupCommandReader,
    decode_announcement,
    encode_answer,
)

if TYPE_CHECKING:
    from nsqx.nsqlookupd.lookupd import Lookupd
    from nsqx.nsqlookupd.registry import Registration

_SIZE_UNKNOWN: Final = -1
# Commands that one connection may process per turn; most of them are logged.
COMMANDS_PER_SLICE: Final = 32
LINES_PER_SLICE: Final = 50  # of the log


class DepartureLog:
    """Logs the registrations of a disconnected peer. There can be thousands, so each turn logs a part."""

    __slots__ = ("_lookupd", "_next", "_remote_address", "_removed")

    def __init__(self, lookupd: Lookupd, remote_address: str, removed: list[Registration]) -> None:
        self._lookupd = lookupd
        self._remote_address = remote_address
        self._removed = removed
        self._next = 0

    def work(self) -> None:
        """Log the next part, as a member of the round-robin."""
        part = self._removed[self._next : self._next + LINES_PER_SLICE]
        self._next += len(part)
        for registration in part:
            self._lookupd.log.info("DB: client(%s) UNREGISTER %s", self._remote_address, registration)
        if self._next < len(self._removed):
            self._lookupd.round_robin.join(self)


class PeerSession:
    """One connection. ``ended`` means that reading stops, ``has_more`` that unprocessed input is left."""

    __slots__ = (
        "_body_size",
        "_greeted",
        "_identifying",
        "_lookupd",
        "_reader",
        "_remote_address",
        "ended",
        "has_more",
        "peer",
    )

    def __init__(self, lookupd: Lookupd, remote_address: str) -> None:
        self.peer: Peer | None = None
        self.ended = False
        self.has_more = False
        self._lookupd = lookupd
        self._remote_address = remote_address
        self._reader = LookupCommandReader()
        self._greeted = False
        self._identifying = False
        self._body_size = _SIZE_UNKNOWN
        lookupd.log.info("TCP: new client(%s)", remote_address)

    def receive(self, data: bytes) -> bytes:
        """Process received bytes; return the answers to the first slice of complete commands."""
        if self.ended:
            return b""
        self._reader.feed(data)
        return self.proceed()

    def proceed(self) -> bytes:
        """Process the next slice of the input; return the answers."""
        self.has_more = False
        answers = bytearray()
        try:
            if not self._greeted:
                self._check_magic()
            for _ in range(COMMANDS_PER_SLICE if self._greeted else 0):
                answer = self._next_answer()
                if answer is None:
                    break
                answers += encode_answer(answer)
            else:
                self.has_more = self._greeted
        except ProtocolError as error:
            answers += encode_answer(self._refuse(error))
        return bytes(answers)

    def receive_end(self) -> bytes:
        """Handle the end of input; return the answer to an incomplete command."""
        if self.ended or not self._identifying:
            return b""
        what = "body size" if self._body_size == _SIZE_UNKNOWN else "body"
        return encode_answer(self._refuse(ProtocolError("E_BAD_BODY", f"IDENTIFY failed to read {what}")))

    def close(self, reason: str) -> None:
        """End the session, unless it has ended, and remove the peer's registrations."""
        if self.ended:
            return
        self.ended = True
        log = self._lookupd.log
        # A client that disconnects normally is not an error.
        level = log.info if reason == "EOF" else log.error
        if not self._greeted:
            level("failed to read protocol version - %s", reason)
            return
        log.info("PROTOCOL(V1): [%s] exiting ioloop", self._remote_address)
        if self.peer is not None:
            removed = self._lookupd.registry.leave(self.peer)
            self._lookupd.counts.unregistrations += len(removed)
            DepartureLog(self._lookupd, self._remote_address, removed).work()
        level("client(%s) - %s", self._remote_address, on_one_line(reason))

    def _refuse(self, error: ProtocolError) -> bytes:
        text = str(error)
        if self._greeted:
            self._lookupd.log.error("[%s] - %s", self._remote_address, on_one_line(text))
            self.close(text)
        self.ended = True
        return text.encode("utf-8", "surrogateescape")

    def _check_magic(self) -> None:
        magic = self._reader.body(len(MAGIC))
        if magic is None:
            return
        log, address = self._lookupd.log, self._remote_address
        shown = on_one_line(magic.decode("utf-8", "surrogateescape"))
        log.info("CLIENT(%s): desired protocol magic '%s'", address, shown)
        if magic != MAGIC:
            log.error("client(%s) bad protocol magic '%s'", address, shown)
            raise ProtocolError("E_BAD_PROTOCOL", "")
        self._greeted = True

    def _next_answer(self) -> bytes | None:
        """Run the next command and return its answer; None if it is incomplete."""
        if self._identifying:
            return self._identify()
        line = self._reader.line()
        if line is None:
            return None
        command, *words = line.split(" ")
        if command == "PING":
            return self._ping()
        if command == "IDENTIFY":
            if self.peer is not None:
                raise ProtocolError("E_INVALID", "cannot IDENTIFY again")
            self._identifying = True
            return self._identify()
        if command == "REGISTER":
            return self._register(words)
        if command == "UNREGISTER":
            return self._unregister(words)
        raise ProtocolError("E_INVALID", f"invalid command {command}")

    def _ping(self) -> bytes:
        self._lookupd.counts.pings += 1
        if self.peer is not None:
            silent_ns = self._lookupd.registry.ping(self.peer)
            log = self._lookupd.log
            if log.info_enabled:
                log.info("CLIENT(%s): pinged (last ping %s)", self.peer.id, format_duration(silent_ns))
        return OK

    def _identify(self) -> bytes | None:
        if self._body_size == _SIZE_UNKNOWN:
            size = self._reader.size()
            if size is None:
                return None
            if size <= 0:
                raise ProtocolError("E_BAD_BODY", f"IDENTIFY invalid body size {size}")
            if size > MAX_IDENTIFY_SIZE:
                raise ProtocolError("E_BAD_BODY", f"IDENTIFY body too big {size} > {MAX_IDENTIFY_SIZE}")
            self._body_size = size
        body = self._reader.body(self._body_size)
        if body is None:
            return None
        self._identifying = False
        try:
            announcement = decode_announcement(body)
        except InvalidJSON:
            raise ProtocolError("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from None
        if not announcement.is_complete:
            raise ProtocolError("E_BAD_BODY", "IDENTIFY missing fields")
        log = self._lookupd.log
        log.info(
            "CLIENT(%s): IDENTIFY Address:%s TCP:%d HTTP:%d Version:%s",
            self._remote_address,
            on_one_line(announcement.broadcast_address),
            announcement.tcp_port,
            announcement.http_port,
            on_one_line(announcement.version),
        )
        self.peer = Peer(self._remote_address, announcement)
        registration = self._lookupd.registry.identify(self.peer)
        self._lookupd.counts.registrations += 1
        log.info("DB: client(%s) REGISTER %s", self._remote_address, registration)
        return self._lookupd.introduction

    def _register(self, words: list[str]) -> bytes:
        peer, topic_name, channel_name = self._topic_and_channel("REGISTER", words)
        added = self._lookupd.registry.register(peer, topic_name, channel_name)
        self._lookupd.counts.registrations += len(added)
        for registration in added:
            self._lookupd.log.info("DB: client(%s) REGISTER %s", self._remote_address, registration)
        return OK

    def _unregister(self, words: list[str]) -> bytes:
        peer, topic_name, channel_name = self._topic_and_channel("UNREGISTER", words)
        removed = self._lookupd.registry.unregister(peer, topic_name, channel_name)
        self._lookupd.counts.unregistrations += len(removed)
        log = self._lookupd.log
        for registration in removed:
            if registration.category == "channel" and not channel_name:
                # nsqd unregisters the channels of a topic first.
                log.warn("client(%s) unexpected UNREGISTER %s", self._remote_address, registration)
            else:
                log.info("DB: client(%s) UNREGISTER %s", self._remote_address, registration)
        return OK

    def _topic_and_channel(self, command: str, words: list[str]) -> tuple[Peer, str, str]:
        """Return the peer, and the topic and channel of a command; the channel is empty if not given."""
        if self.peer is None:
            raise ProtocolError("E_INVALID", "client must IDENTIFY")
        if not words:
            raise ProtocolError("E_INVALID", f"{command} insufficient number of params")
        topic_name = words[0]
        channel_name = words[1] if len(words) > 1 else ""
        if not is_valid_name(topic_name):
            raise ProtocolError("E_BAD_TOPIC", f"{command} topic name '{topic_name}' is not valid")
        if channel_name and not is_valid_name(channel_name):
            raise ProtocolError("E_BAD_CHANNEL", f"{command} channel name '{channel_name}' is not valid")
        return self.peer, topic_name, channel_name
