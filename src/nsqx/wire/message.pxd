cimport cython
from libc.stdint cimport int64_t, uint64_t

from nsqx.wire cimport byteops

cdef int64_t _SEQUENCE_MASK
cdef int64_t _NODE_MASK
cdef int _TICK_SHIFT


@cython.final
@cython.freelist(256)
cdef class QueuedMessage:
    cdef public bytes id
    cdef public bytes body
    cdef public int64_t timestamp
    cdef public unsigned int attempts
    cdef public int64_t client_id
    cdef public int64_t delivered_ns
    cdef public int64_t deadline_ns
    cdef public int64_t defer_ns
    cdef public int64_t record

    cpdef QueuedMessage copy(self)


@cython.final
@cython.freelist(256)
cdef class Batch:
    cdef public bytes data
    cdef public Py_ssize_t position
    cdef public Py_ssize_t count
    cdef public int64_t timestamp
    cdef public int64_t number

    @cython.locals(start=Py_ssize_t, end=Py_ssize_t)
    cpdef QueuedMessage take(self)
    @cython.locals(position=Py_ssize_t)
    cpdef Batch split(self, Py_ssize_t count)
    cpdef void skip(self)
    @cython.locals(position=Py_ssize_t, total=int64_t, size=Py_ssize_t)
    cpdef int64_t size(self)
    cpdef Batch copy(self)


@cython.locals(sequence=int64_t, tick=int64_t)
cpdef int64_t advance_id(int64_t number, int64_t count) noexcept
@cython.locals(message=QueuedMessage)
cpdef QueuedMessage new_message(bytes message_id, bytes body, int64_t timestamp, unsigned int attempts)
cpdef QueuedMessage message_at(object data, Py_ssize_t start, Py_ssize_t end)
@cython.locals(batch=Batch)
cpdef Batch new_batch(bytes data, Py_ssize_t position, Py_ssize_t count, int64_t timestamp, int64_t number)
