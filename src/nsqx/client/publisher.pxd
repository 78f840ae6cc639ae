cimport cython

from nsqx.client.connection cimport NsqdConnection, FrameReceiver

cdef double _NEVER_S


@cython.final
@cython.freelist(256)
cdef class Publication:
    cdef public str topic
    cdef public bytes head
    cdef public bytes body
    cdef public object future
    cdef public list members
    cdef public int attempts
    cdef public object error
    cdef public bint is_uncertain
    cdef public double created_s
    cdef public double deadline_s

    cpdef succeed(self)
    cpdef fail(self, object error)
    cpdef bint is_abandoned(self) except *


@cython.locals(publication=Publication)
cpdef Publication new_publication(str topic, bytes head, bytes body, object future, double timeout_s)


@cython.locals(publication=Publication, earliest_s=double)
cpdef double earliest_deadline_s(publications) except? -1


cdef class Publisher(FrameReceiver):
    cdef readonly NsqdConnection connection
    cdef readonly Py_ssize_t bytes_under_way
    cdef readonly str refusal_text
    cdef object _owner
    cdef object _under_way
    cdef Py_ssize_t _expired_count
    cdef Py_ssize_t _max_count
    cdef Py_ssize_t _max_bytes

    cpdef bint has_room(self) except *
    cpdef Py_ssize_t count_under_way(self) except? -1
    cpdef publish(self, Publication publication)
    @cython.locals(publication=Publication)
    cpdef ok(self, Py_ssize_t count)
    cpdef drained(self)
    cpdef writable(self)
    @cython.locals(publication=Publication)
    cpdef refusal(self, str text)
    cpdef lost(self, object error)
