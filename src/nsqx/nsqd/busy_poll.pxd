cimport cython
from libc.stdint cimport int64_t

cdef int64_t _AWAKE_NS
cdef int _MISS_COST
cdef int _MOST_CREDIT
cdef int _REST_QUESTIONS


@cython.final
cdef class BusyPoll:
    cdef readonly bint is_awake
    cdef bint _is_on
    cdef object _call_soon
    cdef object _now_ns
    cdef object _yield_core
    cdef bint _has_found
    cdef bint _is_late
    cdef int _rest
    cdef int _credit
    cdef int64_t _until_ns

    cpdef asked(self)
    cdef bint _is_over(self) except -1
    cdef _stay_awake(self)
    cpdef _look(self)
    cdef _go_to_sleep(self)
