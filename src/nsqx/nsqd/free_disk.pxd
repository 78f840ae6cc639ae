cimport cython
from libc.stdint cimport int64_t

cdef int64_t _MEASURE_EVERY_NS


@cython.final
cdef class FreeDisk:
    cdef readonly bint is_low
    cdef str _directory
    cdef object _free_bytes
    cdef object _least_bytes
    cdef bint _is_measured
    cdef int64_t _measured_ns
    cdef object _statvfs

    cpdef refuse_if_low(self, int64_t now_ns)
    cdef _measure(self)
