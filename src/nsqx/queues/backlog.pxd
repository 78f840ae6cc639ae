cimport cython
from libc.stdint cimport int64_t

from nsqx.queues.diskqueue cimport DiskQueue
from nsqx.wire cimport byteops
from nsqx.wire.message cimport Batch, QueuedMessage


@cython.final
cdef class Backlog:
    cdef readonly DiskQueue disk
    cdef object _memory
    cdef int64_t _memory_count
    cdef int64_t _memory_limit
    cdef int64_t _memory_bytes
    cdef int64_t _byte_limit
    cdef Batch _head

    cpdef bint has_messages(self)
    cpdef bint holds_memory(self)
    @cython.locals(room=int64_t)
    cpdef put_batch(self, Batch batch)
    @cython.locals(position=Py_ssize_t, fitting=int64_t, size=int64_t)
    cdef int64_t _take_room(self, Batch batch, int64_t room)
    @cython.locals(fits=bint)
    cpdef put_message(self, QueuedMessage message)
    cpdef put_back(self, QueuedMessage message)
    cpdef bint finish(self, QueuedMessage message) except -1
    cpdef bint must_refuse(self, int64_t count) except -1
    @cython.locals(timestamp=int64_t, message=QueuedMessage)
    cpdef QueuedMessage get(self)
    @cython.locals(head=Batch)
    cdef QueuedMessage _get_from_memory(self)
    cdef int64_t _head_timestamp(self) except? -1
    cpdef object get_batch(self)
