cimport cython
from libc.stdint cimport int64_t

from nsqx.nsqd.session cimport Session
from nsqx.nsqd.turn cimport Turn

cdef int64_t _PLENTY
cdef Py_ssize_t _LITTLE


cdef class Connection:
    cdef object _broker
    cdef Turn _turn
    cdef object _loop
    cdef object _transport
    cdef int _descriptor
    cdef Session _session
    cdef str _host
    cdef bytes _prelude
    cdef int64_t _seen_commands
    cdef int64_t _interval_ns
    cdef double _alive_at_s
    cdef double _heartbeat_at_s
    cdef double _blocked_at_s
    cdef object _timer
    cdef object _agreed
    cdef object _layers
    cdef object _handshake
    cdef bint _listens
    cdef object _pieces_left

    @cython.locals(session=Session)
    cpdef data_received(self, bytes data)
    cpdef write(self, bytearray data)
    @cython.locals(sent=Py_ssize_t)
    cdef _send(self, bytearray data)
