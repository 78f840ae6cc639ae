"""A client connection without a socket: the transport records writes, and tests pass frames in directly."""

import asyncio
import struct

from nsqx.client.connection import NsqdConnection
from nsqx.wire import frames


class RecordingTransport:
    """A transport that records what is written."""

    def __init__(self, protocol):
        self.protocol = protocol
        self.writes = []
        self.unsent = 0
        self.is_closed = False
        self.is_aborted = False

    def write(self, data):
        assert not self.is_closed, "written after the close"
        self.writes.append(bytes(data))

    def is_closing(self):
        return self.is_closed

    def set_write_buffer_limits(self, high):
        pass

    def get_write_buffer_size(self):
        return self.unsent

    def close(self):
        self._end()

    def abort(self):
        self.is_aborted = True
        self._end()

    def _end(self):
        if not self.is_closed:
            self.is_closed = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)


class ConnectionHarness:
    """A connection after the handshake, with a recording transport."""

    def __init__(self, **options):
        timeouts = {"read_timeout_s": 0.0, "write_timeout_s": 1.0, **options}
        self.connection = NsqdConnection("127.0.0.1:4150", asyncio.get_running_loop(), **timeouts)
        self.transport = RecordingTransport(self.connection)
        self.connection.connection_made(self.transport)

    def receive(self, *encoded):
        """Pass encoded frames to the connection, as if nsqd had sent them."""
        self.connection.data_received(b"".join(encoded))

    async def sent(self):
        """Return the bytes written since the last call, including those of this loop turn."""
        await asyncio.sleep(0)
        writes, self.transport.writes = self.transport.writes, []
        return b"".join(writes)


def message_frame(number, attempts=1, body=b"body"):
    data = struct.pack(">qH16s", number, attempts, b"%016d" % number) + body
    return frames.encode_frame(frames.MESSAGE, data)


def error_frame(text):
    return frames.encode_frame(frames.ERROR, text)
