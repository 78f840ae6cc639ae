cimport cython

from nsqx.client.deadlines cimport Deadlines
from nsqx.client.publisher cimport Publication, Publisher, earliest_deadline_s, new_publication
from nsqx.wire cimport encode

cdef int _NEW
cdef int _RUNNING
cdef int _CLOSING
cdef int _CLOSED
cdef Py_ssize_t _JOINED_BYTES


cdef class Producer:
    cdef object __weakref__
    cdef object _create_future
    cdef Deadlines _deadlines
    cdef dict _delayed
    cdef object _discovery
    cdef list _drain_waiters
    cdef bint _is_batching
    cdef dict _joined
    cdef Py_ssize_t _joined_bytes
    cdef dict _lines
    cdef object _loop
    cdef int _max_attempts
    cdef Py_ssize_t _max_batch_bytes
    cdef Py_ssize_t _max_outstanding
    cdef Py_ssize_t _max_outstanding_bytes
    cdef list _named
    cdef Py_ssize_t _next
    cdef list _open
    cdef object _opened
    cdef object _options
    cdef object _pool
    cdef double _publish_timeout_s
    cdef bint _requires_connection
    cdef double _retry_delay_s
    cdef double _start_timeout_s
    cdef int _state
    cdef object _stream
    cdef object _telemetry
    cdef object _waiting

    @cython.locals(publication=Publication, line=bytes)
    cpdef publish(self, str topic, body, timeout=*, seq=*)
    cdef double _timeout_s(self, timeout) except? -1
    cdef _join(self, Publication publication)
    @cython.locals(publication=Publication)
    cpdef _send_joined(self)
    @cython.locals(publisher=Publisher)
    cpdef _send(self, Publication publication)
    @cython.locals(count=Py_ssize_t, publisher=Publisher)
    cdef Publisher _pick(self)
    @cython.locals(publication=Publication)
    cpdef _on_room(self, Publisher publisher)
    @cython.locals(size=Py_ssize_t, body=bytes)
    cdef list _split(self, list bodies)
    cdef _publish_batch(self, str topic, list bodies, double timeout_s)


@cython.locals(size=Py_ssize_t, index=Py_ssize_t)
cdef Py_ssize_t _check_bodies(str topic, list bodies) except -1
