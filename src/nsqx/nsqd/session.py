"""The rules of the TCP protocol for one client: when a command is allowed, its effect and its answer.

No I/O: bytes come in through ``receive``, and frames are appended to the client's output buffer. For everything else
(upgrades, questions to auth servers, large batches, the close) the session stops at an effect, a value that the
connection carries out. Error texts are exactly Go nsqd's, because clients match on them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsqx.errors import BrokerExiting, DiskQueueError, NotALogTopic, NSQError, ProtocolError
from nsqx.gotext import quote
from nsqx.log import DEBUG
from nsqx.names import is_valid_name
from nsqx.nsqd.effects import Authenticate, Close, PublishInSlices, RenewRights, WatchRights
from nsqx.nsqd.negotiation import negotiate
from nsqx.nsqd.protocol_states import ALLOWED_BEFORE_TLS, ALLOWED_STATES, NEGOTIATED, ClientState
from nsqx.nsqd.publish_options import PublishOptions
from nsqx.nsqd.turn import ByteReceiver
from nsqx.units import NS_PER_MS
from nsqx.wire import byteops, frames
from nsqx.wire.batches import SLICE_COUNT
from nsqx.wire.commands import (
    BATCH,
    BODY,
    FINISH,
    LINE,
    NEED_DATA,
    PUBLISH,
    SIZE,
    CommandReader,
    LineTooLong,
    batch_truncation,
    max_batch_count,
    parse_digits,
    wrap_int64,
)
from nsqx.wire.log_place import encode_log_place
from nsqx.wire.message import ID_LENGTH
from nsqx.wire.xpub import XpubAnswer, decode_xpub, encode_xpub_answer

if TYPE_CHECKING:
    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.channel import Channel
    from nsqx.nsqd.client import Client
    from nsqx.nsqd.effects import Effect, Outcome
    from nsqx.nsqd.topic import Topic

MAGIC: Final = b"  V2"

# The limit of work in one ``receive`` or ``proceed``, before other connections get their turn. The unit is a FIN, the
# cheapest command. A slice is about a millisecond of any commands: the FINs of a consumer with RDY 2500, or 512 PUBs.
SLICE: Final = 2560
_SLICE = SLICE
_PUBLISH_COST = 4
_SLICE_COUNT = SLICE_COUNT
_LINE_COST = 24
_LOGGED_COST = 160

# Typed in the .pxd, for the loop in ``_step``.
_NEED_DATA = NEED_DATA
_FINISH = FINISH
_LINE = LINE
_SIZE = SIZE
_BODY = BODY
_BATCH = BATCH
_PUBLISH = PUBLISH
_OK = frames.OK
_DEBUG = DEBUG
_SUBSCRIBED = ClientState.SUBSCRIBED
_CLOSING = ClientState.CLOSING


class _AuthPending(Exception):
    """The client's rights have expired and must be renewed before the command can be executed."""


class ClientSession(ByteReceiver):
    """The session of one client, from the magic to the end."""

    __slots__ = (
        "_awaited",
        "_broker",
        "_budget",
        "_channel",
        "_command",
        "_commits",
        "_defer_ns",
        "_is_debugging",
        "_is_over",
        "_log",
        "_max_body_size",
        "_max_msg_size",
        "_reader",
        "_repeated_name",
        "_repeated_topic",
        "_stalled",
        "_topic",
        "_topic_name",
        "_turn",
        "client",
        "command_count",
        "effect",
        "has_more",
    )

    def __init__(self, broker: Broker, client: Client) -> None:
        self.client = client
        self.command_count = 0
        self._broker = broker
        self._turn = broker.turn
        self._commits = broker.commits
        self._log = broker.log
        self._reader = CommandReader()
        self._max_msg_size = broker.options.max_msg_size
        self._max_body_size = broker.options.max_body_size
        self._is_over = False
        self.effect: Effect | None = None  # to be carried out; see ``take_effect``
        self._awaited: Effect | None = None  # the effect whose outcome the session waits for
        self.has_more = False  # the slice is used up, and ``proceed`` would continue
        self._budget = 0
        self._is_debugging = False
        # A command line that is executed when the client's rights are renewed.
        self._stalled: list[bytes] | None = None
        # The command whose body is being read, and the arguments of its line.
        self._command = b""
        self._topic_name = ""
        self._topic: Topic | None = None
        self._defer_ns = 0
        self._channel: Channel | None = client.channel
        # The topic of the PUB line that the reader has cached.
        self._repeated_name = ""
        self._repeated_topic: Topic | None = None
        client.heartbeat_interval_ns = broker.default_heartbeat_ns
        client.output_buffer_timeout_ns = broker.options.output_buffer_timeout
        client.msg_timeout_ns = broker.options.msg_timeout

    # Bytes in

    def receive(self, data: bytes) -> None:
        """Process received bytes, up to one slice of work."""
        if self._is_over:
            return
        self._reader.feed(data)
        self._run()

    def proceed(self) -> None:
        """Process the next slice of the received bytes."""
        self._run()

    def take_rest(self) -> bytes:
        """Return the unprocessed input, for the layer that the connection is upgraded with."""
        return self._reader.take_rest()

    # Effects

    def take_effect(self) -> Effect | None:
        """Return the effect that the caller must carry out now; None if there is none. Each is returned once."""
        effect, self.effect = self.effect, None
        return effect

    @property
    def is_waiting(self) -> bool:
        """True while the session waits for the outcome of an effect. It only stores the bytes it receives then."""
        return self._awaited is not None

    def resolve(self, outcome: Outcome) -> None:
        """Continue with the outcome of the effect. An outcome after the end of the session is ignored."""
        effect, self._awaited = self._awaited, None
        if self._is_over:
            return
        if isinstance(effect, PublishInSlices):
            self._answer_slices(effect.topic, outcome)
        elif isinstance(outcome, ProtocolError):
            self._refuse(outcome)
        elif isinstance(outcome, bytes):
            self._respond(outcome)
        self._run()

    def revoke(self, error: ProtocolError) -> None:
        """End the session of a subscriber that has lost its right."""
        if not self._is_over:
            self._refuse(error)

    def _stop_at(self, effect: Effect) -> None:
        self.effect = self._awaited = effect

    # Commands

    def _run(self) -> None:
        self._budget = _SLICE
        self.has_more = False
        level = self._log.level
        self._is_debugging = level <= _DEBUG
        while not self._is_over and self._awaited is None:
            try:
                if not self._step():
                    return
            except ProtocolError as error:
                self._refuse(error)
            except _AuthPending:
                self._renew_rights()
            except LineTooLong:
                self._log.error("client(%s) - failed to read command - buffer full", self.client.remote_address)
                self._end()

    def _step(self) -> bool:
        """Execute the complete commands; False if more bytes are needed or the slice is used up."""
        reader = self._reader
        if self._stalled is not None:
            words, self._stalled = self._stalled, None
            self._act_on_line(words)
        while not self._is_over and self._awaited is None:
            self._budget -= 1
            if self._budget < 0:
                self.has_more = True
                return False
            event = reader.next()
            if event == _FINISH:
                self.command_count += 1
                if self._is_debugging:
                    self._log_command([b"FIN", byteops.id_text(reader.id_number)])
                if self._channel is None or not self._channel.store.finish_number(self.client, reader.id_number):
                    self._finish(byteops.id_text(reader.id_number))  # answers with the reason
            elif event == _PUBLISH:
                self.command_count += 1
                self._budget -= _PUBLISH_COST
                if self._is_debugging:
                    self._log_command([b"PUB", self._repeated_name.encode()])
                self._publish_again(reader.item)
            elif event == _NEED_DATA:
                return False
            elif event == _LINE:
                self.command_count += 1
                self._budget -= _LINE_COST
                if self._is_debugging:
                    self._log_command(reader.words)
                self._act_on_line(reader.words)
            elif event == _SIZE:
                self._check_size(reader.size)
            elif event == _BODY:
                self.command_count += 1
                self._act_on_body()
            else:
                self.command_count += 1
                self._publish_batch()
        return True

    def _log_command(self, words: list[bytes]) -> None:
        """Log a command line at the debug level, as Go nsqd does."""
        self._budget -= _LOGGED_COST
        line = b" ".join(words).decode("utf-8", "backslashreplace")
        self._log.debug("PROTOCOL(V2): [%s] [%s]", self.client.remote_address, line)

    def receive_end(self) -> None:
        """Handle the end of input: a truncated command is answered with its error."""
        if self._is_over:
            return
        missing = self._reader.missing()
        if missing:
            name = self._command.decode()
            if name == "MPUB":
                self._refuse(batch_truncation(self._reader))
            elif name in ("PUB", "DPUB"):
                what = "message body size" if missing == "size" else "message body"
                self._refuse(ProtocolError("E_BAD_MESSAGE", f"{name} failed to read {what}"))
            else:
                what = "body size" if missing == "size" else "body"
                self._refuse(ProtocolError("E_BAD_BODY", f"{name} failed to read {what}"))
        self._end()

    def closed(self) -> None:
        """Leave the channel after the connection was closed."""
        self._is_over = True
        channel = self.client.channel
        if channel is not None:
            channel.remove_client(self.client)

    # Frames out

    def _send(self, frame: bytes) -> None:
        self.client.output.frames += frame
        self._turn.send_to(self.client)

    def _respond(self, data: bytes) -> None:
        self._send(frames.encode_frame(frames.RESPONSE, data))

    def _refuse(self, error: ProtocolError) -> None:
        text = str(error)
        self._budget -= _LOGGED_COST
        self._log.error("[%s] - %s", self.client.remote_address, text)
        self._send(frames.encode_frame(frames.ERROR, text.encode("utf-8", "surrogateescape")))
        if error.fatal:
            self._end()

    def _end(self) -> None:
        self._is_over = True
        self.effect = Close()

    # Command lines

    def _act_on_line(self, words: list[bytes]) -> None:
        name = words[0]
        self._command = name
        self._require_allowed(name)
        if name == b"PUB":
            self._topic_name = self._publish_topic(words, 2, "")
            self._expect_body()
        elif name == b"MPUB":
            self._topic_name = self._publish_topic(words, 2, "E_BAD_TOPIC ")
            self._topic = None
            self._authorize("MPUB", self._topic_name, "")
            try:
                self._topic = self._broker.topic(self._topic_name)
            except (BrokerExiting, DiskQueueError) as error:
                raise self._publish_failed("MPUB", error) from None
            self._expect_body()
        elif name == b"RDY":
            self._set_ready(words)
        elif name == b"FIN":
            self._finish(_message_id("FIN", words, 2))
        elif name == b"REQ":
            self._requeue(words)
        elif name == b"TOUCH":
            self._touch(words)
        elif name == b"SUB":
            self._subscribe(words)
        elif name == b"CLS":
            self._start_close()
        elif name == b"DPUB":
            self._expect_deferred(words)
        elif name == b"IDENTIFY":
            self._expect_body()
        elif name == b"XPUB":
            self._topic_name = self._publish_topic(words, 2, "")
            self._expect_body()
        elif name == b"AUTH":
            if len(words) != 1:
                raise ProtocolError("E_INVALID", "AUTH invalid number of parameters")
            self._expect_body()

    def _require_allowed(self, name: bytes) -> None:
        """Raise ProtocolError unless the command exists and is allowed now."""
        if self._broker.is_tls_required and not self.client.tls and name != ALLOWED_BEFORE_TLS:
            raise ProtocolError("E_INVALID", f"cannot {_text(name)} in current state (TLS required)")
        allowed = ALLOWED_STATES.get(name)
        if allowed is None or (name == NEGOTIATED and not self.client.has_nsqx):
            raise ProtocolError("E_INVALID", f"invalid command {_text(name)}")
        if self.client.state not in allowed:
            raise ProtocolError("E_INVALID", f"cannot {_text(name)} in current state")

    def _publish_topic(self, words: list[bytes], needed: int, prefix: str) -> str:
        """Return the topic of a publishing command. ``prefix``: Go nsqd repeats the error code for MPUB."""
        name = _text(words[0])
        if len(words) < needed:
            raise ProtocolError("E_INVALID", f"{name} insufficient number of parameters")
        topic_name = _text(words[1])
        if topic_name not in self._broker.topics and not is_valid_name(topic_name):
            raise ProtocolError("E_BAD_TOPIC", f"{prefix}{name} topic name {quote(words[1])} is not valid")
        return topic_name

    def _expect_deferred(self, words: list[bytes]) -> None:
        self._topic_name = self._publish_topic(words, 3, "")
        delay_ms = parse_digits(words[2])
        if delay_ms is None:
            raise ProtocolError("E_INVALID", f"DPUB could not parse timeout {_text(words[2])}")
        delay_ns = wrap_int64(delay_ms * NS_PER_MS)
        limit_ns = self._broker.options.max_req_timeout
        if delay_ns < 0 or delay_ns > limit_ns:
            raise ProtocolError("E_INVALID", f"DPUB timeout {delay_ms} out of range 0-{limit_ns // NS_PER_MS}")
        self._defer_ns = delay_ns
        self._expect_body()

    def _expect_body(self) -> None:
        self._reader.expect_body()
        self.command_count -= 1  # the command is complete only with its body

    # Sizes and bodies

    def _check_size(self, size: int) -> None:
        name = _text(self._command)
        if name == "PUB" or name == "DPUB":
            if size <= 0:
                raise ProtocolError("E_BAD_MESSAGE", f"{name} invalid message body size {size}")
            if size > self._max_msg_size:
                raise ProtocolError("E_BAD_MESSAGE", f"{name} message too big {size} > {self._max_msg_size}")
            self._reader.accept_body()
        elif name == "MPUB":
            if size <= 0:
                raise ProtocolError("E_BAD_BODY", f"MPUB invalid body size {size}")
            if size > self._max_body_size:
                raise ProtocolError("E_BAD_BODY", f"MPUB body too big {size} > {self._max_body_size}")
            self._reader.accept_batch(max_batch_count(self._max_body_size), self._max_msg_size)
        else:
            if size > self._max_body_size:
                raise ProtocolError("E_BAD_BODY", f"{name} body too big {size} > {self._max_body_size}")
            if size <= 0:
                raise ProtocolError("E_BAD_BODY", f"{name} invalid body size {size}")
            self._reader.accept_body()

    def _act_on_body(self) -> None:
        name = self._command
        if name == b"PUB":
            self._publish_one("PUB", 0)
        elif name == b"DPUB":
            self._publish_one("DPUB", self._defer_ns)
        elif name == b"IDENTIFY":
            self._identify(self._reader.take_body())
        elif name == b"XPUB":
            self._publish_extended()
        else:
            self._authenticate(self._reader.take_body())

    def _publish_one(self, command: str, defer_ns: int) -> None:
        self._authorize(command, self._topic_name, "")
        item = self._reader.take_item()
        try:
            topic = self._broker.topic(self._topic_name)
            if defer_ns > 0:
                topic.publish_deferred(item[4:], defer_ns)
            else:
                topic.publish(item, 1)
                self._remember(topic)
        except (BrokerExiting, DiskQueueError) as error:
            raise self._publish_failed(command, error) from None
        self._acknowledge(command, 1, topic)

    def _publish_extended(self) -> None:
        self._authorize("XPUB", self._topic_name, "")
        request = decode_xpub(self._reader.take_body(), self._max_body_size, self._max_msg_size)
        limit_ms = self._broker.options.max_req_timeout // NS_PER_MS
        if not 0 <= request.defer_ms <= limit_ms:
            raise ProtocolError("E_BAD_BODY", f"XPUB defer {request.defer_ms} out of range 0-{limit_ms}")
        options = PublishOptions(request.producer, request.seq, request.defer_ms * NS_PER_MS, request.is_synced)
        try:
            topic = self._broker.topic(self._topic_name)
            outcome = topic.publish_with(request.items, request.message_count, options)
        except (BrokerExiting, DiskQueueError, NotALogTopic) as error:
            raise self._publish_failed("XPUB", error) from None
        self._budget -= _LINE_COST
        if not outcome.is_duplicate:
            self.client.published(self._topic_name, request.message_count)
        if request.is_synced:
            self._commits.hold_until_durable(self.client, "XPUB", topic)
        else:
            self._commits.hold(self.client, "XPUB", topic)
        self._respond(encode_xpub_answer(XpubAnswer(outcome.first, request.message_count, outcome.is_duplicate)))

    def _remember(self, topic: Topic) -> None:
        """Cache the topic for the next PUB (not when auth is enabled: each command must be checked then)."""
        if topic is self._repeated_topic or self._broker.authorizer.is_enabled:
            return
        self._repeated_name = self._topic_name
        self._repeated_topic = topic
        self._reader.remember(b"PUB %b\n" % self._topic_name.encode(), self._max_msg_size)

    def _publish_again(self, item: bytes) -> None:
        """Handle a PUB to the same topic as before."""
        topic = self._repeated_topic
        assert topic is not None
        self._command = b"PUB"
        self._topic_name = self._repeated_name
        try:
            if topic.exiting:  # deleted meanwhile, or the broker is exiting
                topic = self._repeated_topic = self._broker.topic(self._repeated_name)
            topic.publish(item, 1)
        except (BrokerExiting, DiskQueueError) as error:
            raise self._publish_failed("PUB", error) from None
        self._acknowledge("PUB", 1, topic)

    def _publish_batch(self) -> None:
        if self._broker.authorizer.is_enabled:
            self._authorize("MPUB", self._topic_name, "")  # the right may have expired while the body arrived
        items = self._reader.take_batch()
        count = self._reader.count
        topic = self._topic
        assert topic is not None
        if count > _SLICE_COUNT:
            self._stop_at(PublishInSlices(topic, items))
            return
        try:
            topic.publish(items, count)
        except (BrokerExiting, DiskQueueError) as error:
            raise self._publish_failed("MPUB", error) from None
        self._acknowledge("MPUB", count, topic)

    def _answer_slices(self, topic: Topic, outcome: Outcome) -> None:
        if isinstance(outcome, NSQError):
            self._refuse(self._publish_failed("MPUB", outcome))
        else:
            self._acknowledge("MPUB", self._reader.count, topic)

    def _acknowledge(self, command: str, count: int, topic: Topic) -> None:
        client = self.client
        client.published(self._topic_name, count)
        self._commits.hold(client, command, topic)
        client.output.frames += _OK
        self._turn.send_to(client)

    def _publish_failed(self, command: str, error: NSQError) -> ProtocolError:
        if isinstance(error, DiskQueueError) and not error.is_log_full:  # the disk is healthy then
            self._commits.note_failure(error)
        return ProtocolError(f"E_{command}_FAILED", f"{command} failed {error}")

    def _identify(self, body: bytes) -> None:
        negotiated = negotiate(self.client, body, self._broker)
        self._respond(negotiated.answer)
        if negotiated.upgrade is not None:
            self._stop_at(negotiated.upgrade)

    def _authenticate(self, secret: bytes) -> None:
        if self.client.authed:
            raise ProtocolError("E_INVALID", "AUTH already set")
        self._stop_at(Authenticate(secret))

    def _authorize(self, command: str, topic_name: str, channel_name: str) -> None:
        """Raise ProtocolError if not allowed. If the rights have expired, the command is repeated after a query."""
        authorizer = self._broker.authorizer
        if not authorizer.is_enabled:
            return
        if not authorizer.is_current(self.client):
            raise _AuthPending
        authorizer.check(self.client, command, topic_name, channel_name)

    def _renew_rights(self) -> None:
        if self._command == b"SUB" or (self._command == b"MPUB" and self._topic is None):
            self._stalled = self._reader.words  # other commands are checked with their body, which the reader keeps
        self._stop_at(RenewRights())

    # Consuming

    def _subscribe(self, words: list[bytes]) -> None:
        client = self.client
        if client.heartbeat_interval_ns <= 0:
            raise ProtocolError("E_INVALID", "cannot SUB with heartbeats disabled")
        if len(words) < 3:
            raise ProtocolError("E_INVALID", "SUB insufficient number of parameters")
        topic_name, channel_name = _text(words[1]), _text(words[2])
        if not is_valid_name(topic_name):
            raise ProtocolError("E_BAD_TOPIC", f"SUB topic name {quote(words[1])} is not valid")
        if not is_valid_name(channel_name):
            raise ProtocolError("E_BAD_CHANNEL", f"SUB channel name {quote(words[2])} is not valid")
        self._authorize("SUB", topic_name, channel_name)
        try:
            topic = self._broker.topic(topic_name)
            channel = topic.channel(channel_name)
            channel.add_client(client)
        except NSQError as error:
            raise ProtocolError("E_SUB_FAILED", f"SUB failed {error}") from None
        client.state = _SUBSCRIBED
        client.channel = self._channel = channel
        self._commits.hold_until_recorded(client, "SUB", topic)
        place = topic.log_place() if client.has_nsqx else None
        if place is None:
            self._send(frames.OK)
        else:
            self._respond(encode_log_place(place))
        if self._broker.authorizer.is_enabled:
            self._stop_at(WatchRights(topic_name, channel_name))

    def _set_ready(self, words: list[bytes]) -> None:
        client = self.client
        if client.state == _CLOSING:
            self._budget -= _LOGGED_COST
            self._log.info("PROTOCOL(V2): [%s] ignoring RDY after CLS", client.remote_address)
            return
        count = parse_digits(words[1]) if len(words) > 1 else 1
        if count is None:
            raise ProtocolError("E_INVALID", f"RDY could not parse count {_text(words[1])}")
        count = wrap_int64(count)
        limit = self._broker.options.max_rdy_count
        if count < 0 or count > limit:
            raise ProtocolError("E_INVALID", f"RDY count {count} out of range 0-{limit}")
        client.ready_count = count
        if client.channel is not None:
            client.channel.add_if_ready(client)

    def _finish(self, message_id: bytes) -> None:
        channel = self.client.channel
        if channel is None:
            self._require_allowed(b"FIN")
        assert channel is not None
        reason = channel.finish(self.client, message_id)
        if reason is not None:
            raise ProtocolError("E_FIN_FAILED", f"FIN {_text(message_id)} failed {reason}", fatal=False)

    def _requeue(self, words: list[bytes]) -> None:
        message_id = _message_id("REQ", words, 3)
        delay_ms = parse_digits(words[2])
        if delay_ms is None:
            raise ProtocolError("E_INVALID", f"REQ could not parse timeout {_text(words[2])}")
        asked_ns = wrap_int64(delay_ms * NS_PER_MS)
        limit_ns = self._broker.options.max_req_timeout
        delay_ns = min(max(asked_ns, 0), limit_ns)
        if delay_ns != asked_ns:
            self._budget -= _LOGGED_COST
            self._log.info(
                "PROTOCOL(V2): [%s] REQ timeout %d out of range 0-%d. Setting to %d",
                self.client.remote_address,
                asked_ns,
                limit_ns,
                delay_ns,
            )
        channel = self.client.channel
        assert channel is not None
        reason = channel.requeue(self.client, message_id, delay_ns)
        if reason is not None:
            raise ProtocolError("E_REQ_FAILED", f"REQ {_text(message_id)} failed {reason}", fatal=False)

    def _touch(self, words: list[bytes]) -> None:
        message_id = _message_id("TOUCH", words, 2)
        channel = self.client.channel
        assert channel is not None
        reason = channel.touch(self.client, message_id)
        if reason is not None:
            raise ProtocolError("E_TOUCH_FAILED", f"TOUCH {_text(message_id)} failed {reason}", fatal=False)

    def _start_close(self) -> None:
        self.client.ready_count = 0
        self.client.state = _CLOSING
        self._send(frames.CLOSE_WAIT)


def _text(word: bytes) -> str:
    return word.decode("utf-8", "surrogateescape")


def _message_id(command: str, words: list[bytes], needed: int) -> bytes:
    """Return the message id of a command line that has at least ``needed`` words."""
    if len(words) < needed:
        raise ProtocolError("E_INVALID", f"{command} insufficient number of params")
    if len(words[1]) != ID_LENGTH:
        raise ProtocolError("E_INVALID", "invalid message ID")
    return words[1]
