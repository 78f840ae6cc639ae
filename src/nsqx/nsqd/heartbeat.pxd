cimport cython
from libc.stdint cimport int64_t


@cython.final
cdef class Heartbeat:
    cdef readonly int64_t interval_ns
    cdef object _connection
    cdef object _loop
    cdef object _timer
    cdef double _next_at_s
    cdef double _alive_at_s
    cdef double _blocked_at_s

    cpdef note_alive(self)
