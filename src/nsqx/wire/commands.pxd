cimport cython
from libc.stdint cimport int64_t

from nsqx.wire cimport byteops

cdef int _NEED_DATA
cdef int _FINISH
cdef int _LINE
cdef int _SIZE
cdef int _BODY
cdef int _BATCH
cdef int _PUBLISH
cdef int _AT_LINE
cdef int _AT_SIZE
cdef int _AT_DECISION
cdef int _AT_BODY
cdef int _AT_COUNT
cdef int _AT_ITEMS
cdef Py_ssize_t _FINISH_LENGTH
cdef Py_ssize_t _MAX_LINE_LENGTH


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
    cdef int64_t _upper_digits
    cdef int64_t _upper_number
    cdef bytes _repeated
    cdef Py_ssize_t _repeated_limit
    cdef readonly bytes item
    cdef readonly int64_t id_number
    cdef readonly list words
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t count

    cpdef feed(self, bytes data)
    @cython.locals(position=Py_ssize_t, lower_number=int64_t)
    cpdef int next(self) except -1
    @cython.locals(available=Py_ssize_t)
    cdef int _next_part(self) except -1
    @cython.locals(position=Py_ssize_t, newline=Py_ssize_t)
    cdef int _next_line(self) except -1
    @cython.locals(start=Py_ssize_t, size=Py_ssize_t)
    cdef bint _take_repeated(self, Py_ssize_t position) except -1
    cpdef remember(self, bytes line, Py_ssize_t max_size)
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
