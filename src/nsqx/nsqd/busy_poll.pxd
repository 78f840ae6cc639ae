cimport cython
from libc.stdint cimport int64_t

cdef int64_t _POLL_NS
cdef int _MISS_COST
cdef int _MAX_CREDIT
cdef int _REST_COMMANDS


@cython.final
cdef class BusyPoll:
    cdef readonly bint is_polling
    cdef readonly bint is_on
    cdef object _call_soon
    cdef object _now_ns
    cdef object _yield_core
    cdef bint _has_found
    cdef bint _is_late
    cdef int _rest
    cdef int _credit
    cdef int64_t _until_ns

    cpdef note_command(self)
    cdef bint _is_over(self) except -1
    cdef _start_poll(self)
    cpdef _poll(self)
    cdef _stop_polling(self)
