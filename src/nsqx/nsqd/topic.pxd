cimport cython
from libc.stdint cimport int64_t

from nsqx.nsqd.topic_flow cimport TopicFlow


@cython.final
cdef class Topic:
    cdef readonly str name
    cdef readonly bint is_ephemeral
    cdef readonly bint paused
    cdef readonly bint exiting
    cdef readonly dict channels
    cdef readonly int64_t message_count
    cdef readonly int64_t message_bytes
    cdef public int64_t unmoved_count
    cdef readonly object settings
    cdef object _broker
    cdef bint _is_closed
    cdef bint _is_started
    cdef TopicFlow _flow

    cpdef publish(self, bytes items, Py_ssize_t count)
    cdef _refuse(self)
    cpdef publish_deferred(self, bytes body, int64_t defer_ns)
