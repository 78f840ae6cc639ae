cimport cython
from libc.stdint cimport int64_t

cdef int64_t _SPACING


@cython.final
cdef class SegmentIndex:
    cdef list _offsets
    cdef list _positions
    cdef list _times
    cdef readonly int64_t first_time
    cdef readonly int64_t max_time

    cpdef add(self, int64_t offset, int64_t position, int64_t timestamp)


@cython.locals(index=SegmentIndex)
cpdef SegmentIndex decode_index(bytes data, object seed)
