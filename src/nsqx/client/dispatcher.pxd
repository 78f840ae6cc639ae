cimport cython

from nsqx.client.subscription cimport Message


@cython.final
cdef class Dispatcher:
    cdef Py_ssize_t _concurrency
    cdef object _decode
    cdef object _give_up
    cdef list _hands
    cdef object _handler
    cdef bint _is_direct
    cdef bint _is_ending
    cdef bint _is_refusing
    cdef bint _is_resuming
    cdef bint _is_waking
    cdef object _loop
    cdef unsigned int _max_attempts
    cdef str _name
    cdef set _tasks
    cdef object _telemetry
    cdef object _waiters
    cdef Py_ssize_t _worker_count
    cdef readonly object messages

    cpdef arrived(self)
    cpdef _wake_rest(self)
    cdef _wake(self, Py_ssize_t count)
    @cython.locals(message=Message)
    cpdef Message take(self)
    @cython.locals(message=Message, until_s=double)
    cpdef _handle_directly(self)
