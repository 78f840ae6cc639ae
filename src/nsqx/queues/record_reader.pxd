cimport cython
from libc.stdint cimport int64_t

from nsqx.queues cimport checksums
from nsqx.wire cimport byteops
from nsqx.wire.message cimport QueuedMessage, message_at

cdef int _NOT_NOW
cdef int _AT_END
cdef int _DAMAGED
cdef int _UNREADABLE
cdef int _FILLED
cdef Py_ssize_t _READ_SIZE
cdef Py_ssize_t _HEADER_LENGTH


@cython.final
cdef class RecordReader:
    cdef readonly int64_t position
    cdef readonly str reason
    cdef str _name
    cdef int64_t _max_record_size
    cdef object _log
    cdef str _path
    cdef int _descriptor
    cdef object _sidecar
    cdef object _buffer
    cdef Py_ssize_t _offset
    cdef Py_ssize_t _limit

    cpdef close(self)
    cdef _clear_buffer(self)
    cpdef preload(self, bytearray records)
    @cython.locals(available=Py_ssize_t, size=Py_ssize_t, found=int)
    cpdef Py_ssize_t next_size(self, int64_t written) except? -9
    cdef int _check_unusual_size(self, Py_ssize_t size, int64_t written) except -9
    @cython.locals(start=Py_ssize_t)
    cpdef QueuedMessage take(self, Py_ssize_t size)
    cpdef int64_t timestamp(self) except? -1
    @cython.locals(usable=Py_ssize_t, position=int64_t, index=Py_ssize_t, good=Py_ssize_t, count=Py_ssize_t, sums=bytes)
    cdef Py_ssize_t _count_usable(self, bytes data) except -1
