cimport cython
from libc.stdint cimport int32_t, int64_t

from nsqx.wire cimport byteops

cdef Py_ssize_t _FRAME_HEAD
cdef Py_ssize_t _MESSAGE_HEAD
cdef Py_ssize_t _OK_LENGTH
cdef unsigned int _OK_TEXT
cdef Py_ssize_t _HTTP_TEXT


@cython.final
cdef class FrameReader:
    cdef object _buffer
    cdef Py_ssize_t _position
    cdef Py_ssize_t _end
    cdef Py_ssize_t _max_size
    cdef Py_ssize_t _start
    cdef Py_ssize_t _stop
    cdef readonly Py_ssize_t count
    cdef readonly bytes data

    cpdef feed(self, bytes data)
    @cython.locals(
        position=Py_ssize_t, available=Py_ssize_t, size=Py_ssize_t, start=Py_ssize_t, stop=Py_ssize_t, kind=int32_t
    )
    cpdef int next(self) except -1
    @cython.locals(count=Py_ssize_t, position=Py_ssize_t)
    cdef int _take_ok_run(self) except -1
    cpdef int64_t message_timestamp(self) except? -1
    cpdef unsigned int message_attempts(self) except? 0xFFFFFFFF
    cpdef bytes message_id(self)
    cpdef bytes message_body(self)
    cpdef Py_ssize_t message_size(self) except -1
    cpdef copy_message_id(self, bytearray out, Py_ssize_t position)
    cpdef copy_message_body(self, bytearray out, Py_ssize_t position)
    cpdef bytes take_rest(self)
