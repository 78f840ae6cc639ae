cimport cython
from libc.stdint cimport int64_t

from nsqx.wire cimport byteops, encode
from nsqx.wire.responses cimport FrameReader

cdef int _NEED_DATA
cdef int _MESSAGE


@cython.final
cdef class Drain:
    cdef readonly int64_t count
    cdef readonly object lateness_ns
    cdef bint _is_timed
    cdef FrameReader _reader
    cdef bytearray _answers

    @cython.locals(reader=FrameReader, answers=bytearray, event=int)
    cpdef bytearray take(self, bytes data, int64_t now_ns)
    cdef _take_other(self, int event)
