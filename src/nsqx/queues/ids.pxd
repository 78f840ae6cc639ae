cimport cython
from libc.stdint cimport int64_t

from nsqx.wire.message cimport advance_id

cdef int64_t _EPOCH_TICK


cdef class IdSource:
    cdef int64_t _node_bits
    cdef int64_t _next

    @cython.locals(number=int64_t)
    cpdef int64_t reserve(self, int64_t count, int64_t now_ns)
