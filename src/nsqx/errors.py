"""Every exception of the package.

NSQError
├── ProtocolError          a client broke the rules; carries the error frame's text
├── HTTPError              a request was refused; carries status and NSQ's error code
├── BrokerExiting          a publish or subscription met a broker that is shutting down
├── TooManyConsumers       a channel is at its max-channel-consumers
├── DiskQueueError         a disk queue could not write; nothing it had accepted before is harmed
├── MetadataError          nsqd.dat cannot be read or written
├── DataPathLocked         another process owns the data directory
├── ConfigError            a flag or configuration value is wrong
└── ClientError            what the client library reports
    ├── ConnectFailed      an nsqd could not be reached, or refused the connection
    ├── ConnectionClosed   a connection ended while something waited for its answer
    ├── InvalidFrame       what came from nsqd is not its protocol
    ├── LookupFailed       no nsqlookupd gave an answer
    ├── InvalidName        a topic or channel name that NSQ does not allow
    ├── InvalidMessage     a body that cannot be published
    ├── PublishFailed      a message was not published, or its outcome is unknown
    │   ├── NotConnected   no nsqd was there to publish to
    │   └── PublishTimedOut  the deadline of a publish has passed
    ├── ClientClosed       a producer or consumer was used after its end
    └── AlreadyAnswered    a message was finished or requeued before
"""


class NSQError(Exception):
    """Root of every error that nsqx raises on purpose."""


class ProtocolError(NSQError):
    """A client's mistake: ``code description`` goes into an error frame, and a fatal one closes the connection."""

    def __init__(self, code: str, description: str, *, fatal: bool = True) -> None:
        super().__init__(f"{code} {description}" if description else code)
        self.code = code
        self.description = description
        self.fatal = fatal


class HTTPError(NSQError):
    """A refused request: the status and the ``message`` of the JSON answer."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code


class BrokerExiting(NSQError):
    """The broker is shutting down and takes nothing more."""

    def __init__(self) -> None:
        super().__init__("exiting")


class TooManyConsumers(NSQError):
    """The channel has as many consumers as max-channel-consumers allows."""

    def __init__(self, topic_name: str, channel_name: str, limit: int) -> None:
        super().__init__(f"consumers for {topic_name}:{channel_name} exceeds limit of {limit}")


class DiskQueueError(NSQError):
    """A disk queue could not be written; the text is the operating system's."""


class MessagesLost(NSQError):
    """Messages that were in memory at exit could not be written."""

    def __init__(self, count: int, data_path: str) -> None:
        noun = "message" if count == 1 else "messages"
        super().__init__(f"{count} {noun} in memory could not be written to {data_path} and are lost")


class MetadataError(NSQError):
    """nsqd.dat cannot be read or written; the text says what to do."""


class DataPathLocked(NSQError):
    """Another process holds the lock of the data directory."""


class ConfigError(NSQError):
    """A flag, a configuration key or a value is wrong; the text is one line for the user."""


class ClientError(NSQError):
    """Root of what the client library raises."""


class ConnectFailed(ClientError):
    """An nsqd could not be reached, or refused the connection; the text says where and why."""


class ConnectionClosed(ClientError):
    """A connection ended while something waited for its answer."""


class InvalidFrame(ClientError):
    """What came is not nsqd's protocol."""


class LookupFailed(ClientError):
    """No nsqlookupd gave an answer; the text tells of each."""


class InvalidName(ClientError, ValueError):
    """A topic or channel name that NSQ does not allow."""


class InvalidMessage(ClientError, ValueError):
    """A body that cannot be published: empty, or not bytes."""


_MAY_BE_PUBLISHED = "; the message may have been published"


class PublishFailed(ClientError):
    """A publish was refused, or its answer never came; ``__cause__`` is the last reason.

    ``may_be_published`` is True if the message was sent and the answer is unknown: publishing it again may double it.
    """

    def __init__(self, topic: str, attempts: int, reason: object, *, may_be_published: bool = False) -> None:
        text = f"publish to {topic} failed after {attempts} attempt{'s'[: attempts != 1]}: {reason}"
        super().__init__(text + _MAY_BE_PUBLISHED if may_be_published else text)
        self.topic = topic
        self.attempts = attempts
        self.may_be_published = may_be_published


class NotConnected(PublishFailed):
    """No nsqd was there to publish to: the message was never sent."""


class PublishTimedOut(PublishFailed, TimeoutError):
    """The deadline of a publish has passed. The text says why, and whether the message may have been published."""

    def __init__(self, topic: str, attempts: int, timeout_s: float, reason: object, *, may_be_published: bool) -> None:
        ending = _MAY_BE_PUBLISHED if may_be_published else "; the message was not sent"
        ClientError.__init__(self, f"publish to {topic} timed out after {timeout_s:g} s: {reason}{ending}")
        self.topic = topic
        self.attempts = attempts
        self.may_be_published = may_be_published


class ClientClosed(ClientError):
    """A producer or consumer was used after its end."""


class AlreadyAnswered(ClientError):
    """A message was finished or requeued before."""
