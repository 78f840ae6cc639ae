cimport cython
from libc.stdint cimport int32_t, int64_t

from nsqx.wire cimport byteops
from nsqx.wire.message cimport advance_id

cdef Py_ssize_t _ID_BYTES
cdef Py_ssize_t _FIRST_CAPACITY


@cython.final
cdef class LogColumns:
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t size
    cdef readonly bytearray values
    cdef readonly bytearray ends
    cdef readonly bytearray id_values
    cdef readonly bytearray times
    cdef readonly bytearray offsets
    cdef int64_t _first_id
    cdef Py_ssize_t _capacity
    cdef int32_t[::1] _ends
    cdef int64_t[::1] _times
    cdef int64_t[::1] _offsets

    cdef _grow(self)
    @cython.locals(
        time_us=int64_t, position=Py_ssize_t, size=Py_ssize_t, place=Py_ssize_t, offset=int64_t, length=int32_t, stop=int64_t
    )
    cpdef add(self, bytes items, int64_t first, int64_t count, int64_t start, int64_t end, int64_t timestamp)


cdef bytearray _enlarged(bytearray old, Py_ssize_t size)
