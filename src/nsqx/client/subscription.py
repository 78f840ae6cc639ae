# cython: auto_pickle=False
"""The messages of one consumer connection, and their answers.

A subscription keeps the counts of its connection (RDY, in flight). ``rdy`` decides the RDY count, and ``dispatcher``
passes the messages to handlers. Answers are appended to the output of the connection, which is written once per loop
turn, so a thousand FINs are one write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nsqx.client.connection import FrameReceiver, NsqdConnection
from nsqx.client.options import Duration, seconds_of
from nsqx.client.signatures import ConstructorSignature, annotate_returns
from nsqx.errors import AlreadyAnswered
from nsqx.wire import encode, requests

if TYPE_CHECKING:
    from nsqx.wire.log_place import LogPlace
    from nsqx.wire.responses import FrameReader

_CLOSE_WAIT = b"CLOSE_WAIT"
_NON_FATAL = ("E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED")

_UNANSWERED = 0
_FINISHED = 1
_REQUEUED = 2


class Message:
    """A message from nsqd. Answer it once, with ``finish`` or ``requeue``.

    Attributes:
        id: 16 hexadecimal digits, unique within one nsqd.
        body: The bytes that were published.
        timestamp: Time of the publish, in nanoseconds since 1970.
        attempts: Number of deliveries, including this one.
        is_detached: True after ``answer_later``.
        value: The body as the codec of the consumer has decoded it; without a codec, the body.
        error: Why the handler failed. Set before ``on_give_up`` is called; None if it was not handled this time.
    """

    __slots__ = ("_state", "_subscription", "attempts", "body", "error", "id", "is_detached", "timestamp", "value")
    __signature__ = ConstructorSignature()

    id: bytes
    body: bytes
    timestamp: int
    attempts: int
    is_detached: bool
    value: Any
    error: Exception | None
    _state: int
    _subscription: Subscription

    def finish(self) -> bool:
        """Finish the message. Return False if its connection has ended; nsqd then delivers the message again."""
        if self._state != _UNANSWERED:
            raise self._answered_before()
        self._state = _FINISHED
        return self._subscription.finish(self)

    def requeue(self, delay: Duration | None = None, backoff: bool = True) -> bool:
        """Ask nsqd to deliver the message again after ``delay``; 0 means at once.

        The default delay is ``default_requeue_delay`` times the number of attempts, up to ``max_requeue_delay``. With
        ``backoff``, this counts as a failure and the consumer backs off. Return False if the connection of the message
        has ended; nsqd then delivers the message again.
        """
        if self._state != _UNANSWERED:
            raise self._answered_before()
        delay_s = -1.0 if delay is None else max(0.0, seconds_of("delay", delay))
        self._state = _REQUEUED
        return self._subscription.requeue(self, delay_s, backoff)

    def touch(self) -> bool:
        """Restart the message timeout. Return False if the connection of the message has ended."""
        if self._state != _UNANSWERED:
            raise self._answered_before()
        return self._subscription.touch(self)

    def answer_later(self) -> None:
        """Do not finish the message when the handler returns. Call ``finish`` or ``requeue`` later."""
        self.is_detached = True

    @property
    def is_answered(self) -> bool:
        """True after ``finish`` or ``requeue``."""
        return self._state != _UNANSWERED

    @property
    def is_lost(self) -> bool:
        """True if the connection of the message has ended. nsqd then delivers the message again."""
        return self._subscription.connection.is_closed

    @property
    def nsqd_address(self) -> str:
        """Address of the nsqd that delivered the message."""
        return self._subscription.connection.address

    @property
    def offset(self) -> int | None:
        """The offset in the log of the topic; None if the topic has no log."""
        place = self._subscription.log_place
        return None if place is None else place.offset(self.id)

    @property
    def log(self) -> str:
        """The id of the log of the topic; empty if the topic has none. Offsets count within one log."""
        place = self._subscription.log_place
        return "" if place is None else place.log

    def _failed(self) -> None:
        """Raise the backoff level, for a message that is given up."""
        self._subscription.failed()

    def _answered_before(self) -> AlreadyAnswered:
        how = "finished" if self._state == _FINISHED else "requeued"
        return AlreadyAnswered(f"message {self.id.decode('ascii', 'replace')} was already {how}")

    def __repr__(self) -> str:
        return f"<Message {self.id.decode('ascii', 'replace')} attempts={self.attempts} body={len(self.body)} bytes>"


annotate_returns(Message, finish="bool", touch="bool")


class Subscription(FrameReceiver):
    """The messages of one connection.

    Calls ``_on_answer_failed(subscription, text, is_harmless)``, ``_on_close_wait(subscription)`` and
    ``_on_lost(subscription, error)`` of ``owner``. Messages go to ``dispatcher``; outcomes go to ``rdy`` while
    ``is_backing_off``.
    """

    __slots__ = (
        "_clock",
        "_dispatcher",
        "_has_new",
        "_messages",
        "_owner",
        "_rdy",
        "_requeue_delay_s",
        "connection",
        "finish_count",
        "in_flight_count",
        "is_backing_off",
        "is_closing",
        "last_message_s",
        "log_place",
        "max_ready_count",
        "message_count",
        "ready_at_s",
        "ready_count",
        "requeue_count",
    )

    def __init__(
        self,
        connection: NsqdConnection,
        owner: Any,
        rdy: Any,
        dispatcher: Any,
        max_ready_count: int,
        requeue_delay_s: Callable[[int], float],
        clock: Callable[[], float],
        log_place: LogPlace | None = None,
    ) -> None:
        """``requeue_delay_s`` returns the default requeue delay for a number of attempts."""
        self.connection = connection
        self.log_place = log_place
        self.max_ready_count = max_ready_count
        self.ready_count = 0
        self.in_flight_count = 0
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0
        self.ready_at_s = self.last_message_s = clock()
        self.is_backing_off = False
        self.is_closing = False
        self._owner = owner
        self._rdy = rdy
        self._dispatcher = dispatcher
        self._messages = dispatcher.messages
        self._requeue_delay_s = requeue_delay_s
        self._clock = clock
        self._has_new = False

    # From the connection

    def message(self, reader: FrameReader) -> None:
        """Pass a message to the dispatcher."""
        message = Message.__new__(Message)
        message.id = reader.message_id()
        message.body = reader.message_body()
        message.timestamp = reader.message_timestamp()
        message.attempts = reader.message_attempts()
        message.is_detached = False
        message.value = message.body
        message.error = None
        message._state = _UNANSWERED
        message._subscription = self
        self.in_flight_count += 1
        self.message_count += 1
        self._has_new = True
        self._messages.append(message)

    def drained(self) -> None:
        """Start the dispatcher if messages have arrived."""
        if self._has_new:
            self._has_new = False
            self.last_message_s = self._clock()
            self._dispatcher.arrived()

    def response(self, data: bytes) -> None:
        """Handle CLOSE_WAIT: nsqd sends no more messages. Close when all messages are answered."""
        if data == _CLOSE_WAIT:
            self._owner._on_close_wait(self)
            self.end_close()

    def refusal(self, text: str) -> None:
        """Report an error frame. After any error not in ``_NON_FATAL``, nsqd closes the connection."""
        self._owner._on_answer_failed(self, text, text.startswith(_NON_FATAL))

    def lost(self, error: Exception | None) -> None:
        """Report the end of the connection to the owner."""
        self.ready_count = 0
        self._owner._on_lost(self, error)

    # To nsqd

    def set_ready(self, count: int, now_s: float) -> None:
        """Send RDY: the number of messages that nsqd may have in flight."""
        self.ready_count = count
        self.ready_at_s = now_s
        self.connection.send(requests.encode_ready(count))

    def finish(self, message: Message) -> bool:
        """Send FIN."""
        self.in_flight_count -= 1
        self.finish_count += 1
        is_sent = not self.connection.is_closed
        if is_sent:
            encode.append_finish(self.connection.output, message.id)
            self.connection.flush_soon()
        if self.is_backing_off and message.error is None:
            self._rdy.succeeded()
        if self.is_closing:
            self._close_if_done()
        return is_sent

    def requeue(self, message: Message, delay_s: float, backoff: bool) -> bool:
        """Send REQ. A negative delay means the default delay."""
        self.in_flight_count -= 1
        self.requeue_count += 1
        is_sent = not self.connection.is_closed
        if is_sent:
            if delay_s < 0:
                delay_s = self._requeue_delay_s(message.attempts)
            self.connection.send(requests.encode_requeue(message.id, round(delay_s * 1000)))
        if backoff:
            self._rdy.failed()
        elif self.is_backing_off:
            self._rdy.held()
        if self.is_closing:
            self._close_if_done()
        return is_sent

    def failed(self) -> None:
        """Count a failure that is not answered with REQ."""
        self._rdy.failed()

    def touch(self, message: Message) -> bool:
        """Send TOUCH."""
        if self.connection.is_closed:
            return False
        self.connection.send(requests.encode_touch(message.id))
        return True

    def start_close(self) -> None:
        """Send CLS. nsqd answers CLOSE_WAIT and sends no more messages."""
        self.connection.send(requests.START_CLOSE)

    def end_close(self) -> None:
        """Close the connection as soon as it has no messages in flight."""
        self.is_closing = True
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self.is_closing and self.in_flight_count <= 0:
            self.connection.close()
