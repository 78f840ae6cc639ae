cimport cython

from nsqx.wire cimport octets


@cython.final
cdef class CommandReader:
    cdef object _buffer
    cdef Py_ssize_t _position
    cdef Py_ssize_t _end
    cdef int _stage
    cdef Py_ssize_t _scan
    cdef Py_ssize_t _item_index
    cdef Py_ssize_t _max_count
    cdef Py_ssize_t _max_item_size
    cdef readonly bytes message_id
    cdef readonly list words
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t count

    cpdef feed(self, bytes data)
    @cython.locals(available=Py_ssize_t)
    cpdef int next(self) except -1
    @cython.locals(position=Py_ssize_t, newline=Py_ssize_t)
    cdef int _next_line(self) except -1
    cpdef expect_body(self)
    cpdef accept_body(self)
    @cython.locals(start=Py_ssize_t)
    cpdef bytes take_body(self)
    @cython.locals(start=Py_ssize_t)
    cpdef bytes take_item(self)
    cpdef accept_batch(self, Py_ssize_t max_count, Py_ssize_t max_item_size)
    @cython.locals(
        start=Py_ssize_t, end=Py_ssize_t, index=Py_ssize_t, count=Py_ssize_t, max_size=Py_ssize_t, size=Py_ssize_t
    )
    cdef int _next_batch(self) except -1
    @cython.locals(start=Py_ssize_t)
    cpdef bytes take_batch(self)
    cpdef bytes take_rest(self)
