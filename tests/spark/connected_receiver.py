"""A column receiver on a connection without a socket."""

from __future__ import annotations

from messages import frame

from nsqx.client.connection import NsqdConnection
from nsqx.client.subscription import Subscription
from nsqx.spark.columns import ColumnReceiver

NODE = "127.0.0.1:4150"


class Transport:
    def __init__(self):
        self.written = bytearray()
        self.is_reading = True
        self.is_closed = False

    def set_write_buffer_limits(self, high):
        pass

    def get_write_buffer_size(self):
        return 0

    def write(self, data):
        self.written += data

    def is_closing(self):
        return self.is_closed

    def pause_reading(self):
        self.is_reading = False

    def resume_reading(self):
        self.is_reading = True

    def close(self):
        self.is_closed = True

    def abort(self):
        self.is_closed = True


class Loop:
    """An event loop with a fixed time that runs callbacks immediately."""

    def time(self):
        return 7.0

    def call_soon(self, callback):
        callback()


class Dispatcher:
    messages = ()


def message(number, body, attempts=1):
    return frame(b"%016x" % number, number, attempts, body)


class ConnectedReceiver:
    """A receiver on a connection without a socket. The test feeds the bytes and reads the output.

    Messages are reported to ``arrived``, or counted.
    """

    def __init__(self, arrived=None):
        self.arrivals = 0
        self.is_full = False
        self.connection = NsqdConnection(NODE, Loop(), read_timeout_s=0, write_timeout_s=1)
        self.transport = Transport()
        self.connection.connection_made(self.transport)
        self.subscription = Subscription(self.connection, self, self, Dispatcher(), 2500, lambda _: 0.0, Loop().time)
        self.receiver = ColumnReceiver("t", NODE, self.subscription, arrived or self.arrived, Loop().time)
        self.connection.start(self.receiver)
        self.lost = []

    def arrived(self):
        self.arrivals += 1
        return self.is_full

    def _on_lost(self, subscription, error):
        self.lost.append(subscription)

    def _on_close_wait(self, subscription):
        pass

    def _on_answer_failed(self, subscription, text, is_harmless):
        self.lost.append(text)
