cimport cython
from libc.stdint cimport int64_t

from nsqx.net.read_pause cimport ReadPause
from nsqx.nsqd.heartbeat cimport Heartbeat
from nsqx.nsqd.session cimport ClientSession
from nsqx.nsqd.turn cimport ByteReceiver, Turn

cdef int _OUTPUT_UNREAD
cdef int _UNCONFIRMED_INPUT
cdef int _WAITS_FOR_EFFECT
cdef int _WAITS_TURN
cdef int _COALESCES_FINS
cdef int _STOPS_INPUT
cdef int64_t _MANY_IN_FLIGHT
cdef Py_ssize_t _FEW_FINS_SIZE
cdef Py_ssize_t _LARGE_CHUNK
cdef Py_ssize_t _MAX_UNCONFIRMED_BYTES


@cython.final
# ``receive`` is declared by the base class.
cdef class ClientConnection(ByteReceiver):
    cdef object _broker
    cdef Turn _turn
    cdef object _round_robin
    cdef object _loop
    cdef object _transport
    cdef int _descriptor
    cdef ClientSession _session
    cdef object _stream
    cdef ReadPause _pause
    cdef Heartbeat _heartbeat
    cdef str _host
    cdef bytes _prelude
    cdef int64_t _seen_commands
    cdef Py_ssize_t _unconfirmed_bytes

    @cython.locals(session=ClientSession)
    cpdef data_received(self, bytes data)
    cdef _note_commands(self, ClientSession session)
    @cython.locals(session=ClientSession)
    cpdef work(self)
    cdef bint _has_input(self, ClientSession session) except *
    cdef _wait_turn(self)
    cdef _end_pause(self, ClientSession session, int reason)
    cdef _note_unconfirmed(self, Py_ssize_t size)
    @cython.locals(session=ClientSession)
    cdef _note_confirmed(self)
    cpdef write(self, bytearray data)
    @cython.locals(sent=Py_ssize_t)
    cdef _send(self, bytearray data)
