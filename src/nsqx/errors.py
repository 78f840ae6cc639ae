"""Every exception of the package.

NSQError
├── ProtocolError          a client sent an invalid command; has the text of the error frame
├── HTTPError              an HTTP request was rejected; has the status and NSQ's error code
├── BrokerExiting          a publish or subscription arrived during shutdown
│   └── BrokerDraining     a publish arrived while the broker is draining
├── TooManyConsumers       a channel has reached max-channel-consumers
├── DiskQueueError         a write to a disk queue or topic log failed; messages accepted before are not affected
├── NotALogTopic           a publish has an option that only log topics have
├── MessagesLost           messages in memory could not be written at exit
├── MetadataError          nsqd.dat cannot be read or written
├── DataPathLocked         another process uses the data directory
├── RequestFailed          nsqd or nsqlookupd did not answer an HTTP request, or not correctly
├── ConfigError            a flag or configuration value is invalid
└── ClientError            base class of the client library's errors
    ├── ConnectFailed      an nsqd was unreachable or rejected the connection
    │   └── ConnectRefused the nsqd answered, and rejected the connection
    ├── ConnectionClosed   a connection ended before an answer arrived
    ├── InvalidFrame       the data from nsqd is not valid NSQ protocol
    ├── LookupFailed       no nsqlookupd answered
    ├── InvalidName        a topic or channel name is not valid
    ├── InvalidMessage     a body cannot be published
    ├── PublishFailed      a message was not published, or the outcome is unknown
    │   ├── NotConnected   no nsqd was connected
    │   └── PublishTimedOut  the deadline of a publish has passed
    ├── GiveUp             a handler raises it to give a message up at once
    │   └── InvalidBody    the codec of a consumer cannot decode a body
    ├── ReadFailed         a reader cannot continue at its position
    ├── ClientClosed       a producer or consumer was used after it was closed
    └── AlreadyAnswered    a message was already finished or requeued
"""


class NSQError(Exception):
    """Base class of all errors that nsqx raises on purpose."""


class ProtocolError(NSQError):
    """An invalid command from a client.

    The client receives ``code description`` in an error frame. A fatal error also closes the connection.
    """

    def __init__(self, code: str, description: str, *, fatal: bool = True) -> None:
        super().__init__(f"{code} {description}" if description else code)
        self.code = code
        self.description = description
        self.fatal = fatal


class HTTPError(NSQError):
    """A rejected HTTP request. ``code`` is the ``message`` of the JSON response, which also has these headers.

    ``fields`` are further members of the JSON object.
    """

    def __init__(
        self,
        status: int,
        code: str,
        headers: tuple[tuple[str, str], ...] = (),
        fields: tuple[tuple[str, int | str], ...] = (),
    ) -> None:
        super().__init__(code)
        self.status = status
        self.code = code
        self.headers = headers
        self.fields = fields


class BrokerExiting(NSQError):
    """The broker is shutting down and accepts no messages or subscriptions."""

    reason = "exiting"

    def __init__(self) -> None:
        super().__init__(self.reason)


class BrokerDraining(BrokerExiting):
    """The broker is draining: it delivers what it has, and accepts no messages or new topics."""

    reason = "draining"


class TooManyConsumers(NSQError):
    """The channel already has max-channel-consumers consumers."""

    def __init__(self, topic_name: str, channel_name: str, limit: int) -> None:
        super().__init__(f"consumers for {topic_name}:{channel_name} exceeds limit of {limit}")


class DiskQueueError(NSQError):
    """A write to a disk queue or to a topic log failed. The text is the operating system's error."""

    is_space_low = False
    """True if there is too little free space on the disk."""
    is_log_full = False
    """True if the topic log has reached its ``max_bytes``."""


class NotALogTopic(NSQError):
    """A publish has an option that needs a topic log, and the topic has none."""

    def __init__(self, topic_name: str, option: str) -> None:
        super().__init__(f"{option} needs a log topic, and {topic_name} is not a log topic (see --store)")
        self.topic_name = topic_name


class MessagesLost(NSQError):
    """Messages in memory could not be written to disk at exit."""

    def __init__(self, count: int, data_path: str) -> None:
        noun = "message" if count == 1 else "messages"
        super().__init__(f"{count} {noun} in memory could not be written to {data_path} and are lost")


class MetadataError(NSQError):
    """nsqd.dat cannot be read or written. The text says what to do."""


class DataPathLocked(NSQError):
    """Another process has locked the data directory."""


class ConfigError(NSQError):
    """A flag, a configuration key or an argument is invalid. The text is one line for the user."""


class RequestFailed(NSQError):
    """A daemon did not answer, or its answer is an error or invalid. The text has Go's wording.

    Attributes:
        reason (str): The text without the method and the URL.
        plain (str): The reason in plain words instead of Go's.
        status (int): The status of an answer with an error; otherwise 0.
        code (str): NSQ's code in an answer with an error, such as TOPIC_NOT_FOUND; otherwise empty.
        numbers (dict): Other numbers in that answer, by name.
    """

    def __init__(
        self,
        reason: str,
        *,
        of: str = "",
        plain: str = "",
        status: int = 0,
        code: str = "",
        numbers: dict[str, int] | None = None,
    ) -> None:
        super().__init__(f"{of}: {reason}" if of else reason)
        self.reason = reason
        self.plain = plain or reason
        self.status = status
        self.code = code
        self.numbers = numbers or {}


class ClientError(NSQError):
    """Base class of the errors of the client library."""


class ConnectFailed(ClientError):
    """An nsqd was unreachable or rejected the connection. The text has the address and the reason."""


class ConnectRefused(ConnectFailed):
    """An nsqd answered and rejected the connection, for example because of a wrong secret or a missing option.

    Another attempt with the same options has the same result, so ``start`` raises this error also if it would wait for
    an nsqd that cannot be reached.
    """


class ConnectionClosed(ClientError):
    """A connection ended before an answer arrived."""


class InvalidFrame(ClientError):
    """The data from nsqd is not valid NSQ protocol."""


class LookupFailed(ClientError):
    """No nsqlookupd answered. The text has the failure of each one."""


class InvalidName(ClientError, ValueError):
    """A topic or channel name is not valid."""


class InvalidMessage(ClientError, ValueError):
    """A message cannot be published: its body is empty or not bytes, or its delay is negative."""


_MAY_BE_PUBLISHED = "; the message may have been published"


class PublishFailed(ClientError):
    """A publish was rejected, or its answer never arrived. ``__cause__`` is the last failure.

    Attributes:
        topic (str): The topic of the message.
        attempts (int): Number of attempts.
        may_be_published (bool): True if the message was sent and the answer is unknown. Publishing the message again
            may then store it twice, unless it is published with the same number.
        seq (int): The number of the publish, if the producer has a name; otherwise 0.
    """

    def __init__(
        self, topic: str, attempts: int, reason: object, *, may_be_published: bool = False, seq: int = 0
    ) -> None:
        text = f"publish to {topic} failed after {attempts} attempt{'s'[: attempts != 1]}: {reason}"
        super().__init__(text + _MAY_BE_PUBLISHED if may_be_published else text)
        self.topic = topic
        self.attempts = attempts
        self.may_be_published = may_be_published
        self.seq = seq


class NotConnected(PublishFailed):
    """No nsqd was connected. The message was never sent."""


class PublishTimedOut(PublishFailed, TimeoutError):
    """The deadline of a publish has passed. The text says why, and if the message may have been published."""

    def __init__(
        self, topic: str, attempts: int, timeout_s: float, reason: object, *, may_be_published: bool, seq: int = 0
    ) -> None:
        ending = _MAY_BE_PUBLISHED if may_be_published else "; the message was not sent"
        ClientError.__init__(self, f"publish to {topic} timed out after {timeout_s:g} s: {reason}{ending}")
        self.topic = topic
        self.attempts = attempts
        self.may_be_published = may_be_published
        self.seq = seq


class GiveUp(ClientError):
    """A handler raises this to give a message up at once, because another attempt would fail too.

    ``on_give_up`` is called, and the message is finished. The consumer does not back off.
    """


class InvalidBody(GiveUp):
    """The body of a message cannot be decoded by the codec of the consumer. The text says why."""


class ReadFailed(ClientError):
    """A reader cannot read the topic or continue at its position. ``code`` is NSQ's code, such as OFFSET_GONE."""

    def __init__(self, text: str, code: str = "") -> None:
        super().__init__(text)
        self.code = code


class ClientClosed(ClientError):
    """A producer or consumer was used after it was closed."""


class AlreadyAnswered(ClientError):
    """A message was already finished or requeued."""
