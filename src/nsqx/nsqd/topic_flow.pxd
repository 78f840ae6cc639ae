from libc.stdint cimport int64_t


cdef class TopicFlow:
    cpdef publish(self, bytes items, Py_ssize_t count)
    cpdef publish_deferred(self, bytes body, int64_t defer_ns)
