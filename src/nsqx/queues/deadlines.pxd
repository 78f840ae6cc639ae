cimport cython
from libc.stdint cimport int64_t

from nsqx.wire.message cimport QueuedMessage

cdef int64_t _NEVER_NS


@cython.final
cdef class Deferred:
    cdef list _heap
    cdef int64_t _serial

    cpdef push(self, QueuedMessage message, int64_t due_ns)
    cpdef int64_t next_deadline(self)
    cpdef list pop_due(self, int64_t now_ns, Py_ssize_t limit)


@cython.final
cdef class InFlight:
    cdef dict _group
    cdef int64_t _group_timeout_ns
    cdef dict _groups
    cdef dict _capped
    cdef list _capped_heap

    cdef _use_group(self, int64_t timeout_ns)
    cpdef bint add(self, QueuedMessage message, int64_t now_ns, int64_t timeout_ns) except -1
    @cython.locals(message=QueuedMessage)
    cpdef QueuedMessage find(self, bytes message_id, int64_t timeout_ns)
    @cython.locals(message=QueuedMessage)
    cpdef QueuedMessage take(self, bytes message_id, int64_t timeout_ns, int64_t client_id)
    @cython.locals(message=QueuedMessage, group=dict)
    cdef QueuedMessage _find_elsewhere(self, bytes message_id)
    @cython.locals(group=dict)
    cpdef remove(self, QueuedMessage message, int64_t timeout_ns)
    @cython.locals(limit_ns=int64_t)
    cpdef touch(self, QueuedMessage message, int64_t now_ns, int64_t timeout_ns, int64_t max_timeout_ns)
    @cython.locals(earliest_ns=int64_t, group=dict, message=QueuedMessage)
    cpdef int64_t next_deadline(self)
    cdef _drop_stale(self)
    @cython.locals(group=dict, message=QueuedMessage)
    cpdef list pop_due(self, int64_t now_ns, Py_ssize_t limit)
