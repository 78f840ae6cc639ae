"""The state of one TCP client: identity, negotiated settings, flow control, counters and unsent output.

State only. The rules that change it are in ``session``. The socket behind ``link`` is in ``connection``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from nsqx.nsqd.output import OutputBuffer
from nsqx.nsqd.protocol_states import ClientState
from nsqx.wire import frames

if TYPE_CHECKING:
    from nsqx.nsqd.channel import Channel

_SUBSCRIBED = ClientState.SUBSCRIBED

# A client whose output has reached this size gets no more messages until the socket has taken it.
OUTPUT_LIMIT: Final = 256 * 1024
_OUTPUT_LIMIT = OUTPUT_LIMIT

DEFAULT_OUTPUT_BUFFER_SIZE: Final = 16 * 1024


class Link(Protocol):
    """The connection to a client's socket."""

    def write(self, data: bytearray) -> None: ...
    def close(self) -> None:
        """Close after everything written has been sent."""


class Client:
    """One connection, from the magic on."""

    __slots__ = (
        "_when_sent",
        "auth_identity",
        "auth_identity_url",
        "authed",
        "channel",
        "client_id",
        "connected_at_s",
        "deflate",
        "finish_count",
        "has_nsqx",
        "has_unsent",
        "heartbeat_interval_ns",
        "hostname",
        "id",
        "in_flight_count",
        "is_ending",
        "is_in_ready_list",
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
        self.state: int = ClientState.INIT
        # Identity; the host address until IDENTIFY names the client.
        self.client_id = remote_host
        self.hostname = remote_host
        self.user_agent = ""
        self.topology_region = ""
        self.topology_zone = ""
        # Negotiated settings.
        self.heartbeat_interval_ns = 0
        self.output_buffer_size = DEFAULT_OUTPUT_BUFFER_SIZE
        self.output_buffer_timeout_ns = 0
        self.msg_timeout_ns = 0
        self.sample_rate = 0
        self.deflate = False
        self.snappy = False
        self.has_nsqx = False  # the client knows the commands that Go's nsqd does not have
        self.tls = False
        self.tls_version = ""
        self.tls_cipher_suite = ""
        self.tls_common_name = ""
        self.tls_negotiated_protocol = ""
        self.tls_negotiated_protocol_is_mutual = False
        self.authed = False
        self.auth_identity = ""
        self.auth_identity_url = ""
        # Flow control: the client gets messages while in_flight_count is below ready_count.
        self.channel: Channel | None = None
        self.ready_count = 0
        self.in_flight_count = 0
        self.writable = True
        self.is_in_ready_list = False
        self.locality = 2
        # Counters.
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0
        self.pub_counts: dict[str, int] = {}
        self.output = OutputBuffer()
        self.has_unsent = False
        self.is_ending = False
        self._when_sent: Callable[[], object] | None = None

    def is_ready(self) -> bool:
        """True if the client can take one more message now."""
        return (
            self.in_flight_count < self.ready_count
            and self.state == _SUBSCRIBED
            and self.writable
            and not self.output.is_held
            and not self.is_ending
            and len(self.output.frames) < _OUTPUT_LIMIT
        )

    def published(self, topic_name: str, count: int) -> None:
        """Count messages that the client published."""
        self.pub_counts[topic_name] = self.pub_counts.get(topic_name, 0) + count

    def send_heartbeat(self) -> None:
        """Add a heartbeat to the output. It overtakes answers that wait for a commit."""
        if self.output.is_held:
            self.link.write(bytearray(frames.HEARTBEAT))
        else:
            self.output.frames += frames.HEARTBEAT

    def when_sent(self, action: Callable[[], object]) -> None:
        """Call ``action`` once, after the flush that leaves no output; never if the client ends with it."""
        self._when_sent = action

    def flush(self) -> bool:
        """Hand the output that waits for no commit to the socket. Then close the socket if the client is ending.

        Return True if the client may be ready again: the output had reached its limit, or is no longer held back.
        """
        self.has_unsent = False
        was_held = self.output.is_held
        released = self.output.release()
        if released:
            self.link.write(released)
        if self.output.is_held:
            return False
        if self.is_ending or self.output.has_failed:
            self.is_ending = True
            self.link.close()
        elif self._when_sent is not None:
            action, self._when_sent = self._when_sent, None
            action()
        return was_held or len(released) >= _OUTPUT_LIMIT
