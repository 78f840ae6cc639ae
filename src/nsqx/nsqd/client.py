"""What the broker knows of one TCP client: who it is, what it may take, what it took, what is to be sent to it.

State only. The rules that change it are in ``session``, the socket behind ``link`` is in ``connection``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from nsqx.wire import frames

if TYPE_CHECKING:
    from nsqx.nsqd.channel import Channel
    from nsqx.nsqd.negotiation import Outcome

# States, as numbered in /stats.
INIT: Final = 0
DISCONNECTED: Final = 1
CONNECTED: Final = 2
SUBSCRIBED: Final = 3
CLOSING: Final = 4
_SUBSCRIBED = SUBSCRIBED

# No more messages are added to an output that holds this much: the socket must take it first.
OUTPUT_LIMIT: Final = 256 * 1024
_OUTPUT_LIMIT = OUTPUT_LIMIT

DEFAULT_OUTPUT_BUFFER_SIZE: Final = 16 * 1024


class Link(Protocol):
    """The way out to a client's socket."""

    def write(self, data: bytearray) -> None: ...
    def close(self) -> None:
        """Close once what was written is sent."""

    def proceed(self) -> None:
        """The session no longer waits for an answer from elsewhere: read on, or let it act on what was received."""

    def upgrade(self, outcome: Outcome) -> None:
        """Put the layers that were agreed on around the socket, after what is in the output has been sent."""


class Client:
    """One connection, from its magic on."""

    __slots__ = (
        "auth_identity",
        "auth_identity_url",
        "authed",
        "channel",
        "client_id",
        "connected_at_s",
        "deflate",
        "finish_count",
        "has_unsent",
        "heartbeat_interval_ns",
        "hostname",
        "id",
        "in_flight_count",
        "is_ending",
        "is_listed",
        "link",
        "locality",
        "message_count",
        "msg_timeout_ns",
        "output",
        "output_buffer_size",
        "output_buffer_timeout_ns",
        "pub_counts",
        "ready_count",
        "remote_address",
        "remote_host",
        "requeue_count",
        "sample_rate",
        "snappy",
        "state",
        "tls",
        "tls_cipher_suite",
        "tls_common_name",
        "tls_negotiated_protocol",
        "tls_negotiated_protocol_is_mutual",
        "tls_version",
        "topology_region",
        "topology_zone",
        "unwritten_command",
        "unwritten_from",
        "user_agent",
        "version",
        "writable",
    )

    def __init__(self, number: int, remote_address: str, remote_host: str, link: Link, connected_at_s: int) -> None:
        self.id = number
        self.remote_address = remote_address
        self.remote_host = remote_host
        self.link = link
        self.connected_at_s = connected_at_s
        self.version = "V2"
        self.state = INIT
        # Who it says it is; its address until it says so.
        self.client_id = remote_host
        self.hostname = remote_host
        self.user_agent = ""
        self.topology_region = ""
        self.topology_zone = ""
        # What it asked for.
        self.heartbeat_interval_ns = 0
        self.output_buffer_size = DEFAULT_OUTPUT_BUFFER_SIZE
        self.output_buffer_timeout_ns = 0
        self.msg_timeout_ns = 0
        self.sample_rate = 0
        self.deflate = False
        self.snappy = False
        self.tls = False
        self.tls_version = ""
        self.tls_cipher_suite = ""
        self.tls_common_name = ""
        self.tls_negotiated_protocol = ""
        self.tls_negotiated_protocol_is_mutual = False
        self.authed = False
        self.auth_identity = ""
        self.auth_identity_url = ""
        # Flow control: it gets messages while fewer are in flight than it is ready for.
        self.channel: Channel | None = None
        self.ready_count = 0
        self.in_flight_count = 0
        self.writable = True
        self.is_listed = False
        self.locality = 2
        # Counters.
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0
        self.pub_counts: dict[str, int] = {}
        # Frames not yet handed to the socket; from ``unwritten_from`` on they hang on this turn's disk writes,
        # the first of them being the answer to ``unwritten_command``.
        self.output = bytearray()
        self.has_unsent = False
        self.is_ending = False
        self.unwritten_from = -1
        self.unwritten_command = ""

    def is_ready(self) -> bool:
        """True if it may be sent one more message now."""
        return (
            self.in_flight_count < self.ready_count
            and self.state == _SUBSCRIBED
            and self.writable
            and not self.is_ending
            and len(self.output) < _OUTPUT_LIMIT
        )

    def published(self, topic_name: str, count: int) -> None:
        """Count messages it published."""
        self.pub_counts[topic_name] = self.pub_counts.get(topic_name, 0) + count

    def settle(self, failure: Exception | None) -> None:
        """This turn's disk writes are done: its held answers stand, or give way to the error."""
        if self.unwritten_from < 0:
            return
        if failure is not None:
            self.is_ending = True
            del self.output[self.unwritten_from :]
            text = f"E_{self.unwritten_command}_FAILED {self.unwritten_command} failed {failure}"
            self.output += frames.encode_frame(frames.ERROR, text.encode())
        self.unwritten_from = -1

    def flush(self) -> bool:
        """Hand the output to the socket, and close it after that if this is the end.

        True if the output had reached its limit, so that messages may wait for it.
        """
        self.has_unsent = False
        output = self.output
        if output:
            self.output = bytearray()
            self.link.write(output)
        if self.is_ending:
            self.link.close()
        return len(output) >= _OUTPUT_LIMIT
