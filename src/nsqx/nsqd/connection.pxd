cimport cython
from libc.stdint cimport int64_t

from nsqx.nsqd.session cimport ClientSession
from nsqx.nsqd.turn cimport Turn

cdef int64_t _MANY_IN_FLIGHT
cdef Py_ssize_t _FEW_FINS_SIZE
cdef Py_ssize_t _LARGE_CHUNK
cdef Py_ssize_t _MAX_UNCONFIRMED_BYTES


cdef class ClientConnection:
    cdef object _broker
    cdef Turn _turn
    cdef object _loop
    cdef object _transport
    cdef int _descriptor
    cdef ClientSession _session
    cdef str _host
    cdef bytes _prelude
    cdef int64_t _seen_commands
    cdef int64_t _interval_ns
    cdef double _alive_at_s
    cdef double _heartbeat_at_s
    cdef double _blocked_at_s
    cdef object _timer
    cdef object _layers
    cdef object _handshake
    cdef object _round_robin
    cdef bint _accepts_commands
    cdef bint _waits_turn
    cdef bint _is_coalescing
    cdef bint _is_reading
    cdef Py_ssize_t _unconfirmed_bytes
    cdef object _pieces_left

    @cython.locals(session=ClientSession)
    cpdef data_received(self, bytes data)
    @cython.locals(session=ClientSession)
    cpdef receive(self, bytes data)
    cdef _note_commands(self, ClientSession session)
    @cython.locals(session=ClientSession)
    cpdef work(self)
    cdef _read_later(self, ClientSession session)
    cdef _read_or_wait(self, ClientSession session)
    cdef bint _may_proceed(self, ClientSession session)
    cdef _note_unconfirmed(self, ClientSession session, Py_ssize_t size)
    @cython.locals(session=ClientSession, had_to_wait=bint)
    cdef _note_confirmed(self)
    @cython.locals(has_input=bint, is_held=bint, reads=bint)
    cdef _update_reading(self, ClientSession session)
    cpdef write(self, bytearray data)
    @cython.locals(sent=Py_ssize_t)
    cdef _send(self, bytearray data)
