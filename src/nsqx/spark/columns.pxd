cimport cython
from libc.stdint cimport int32_t, int64_t

from nsqx.client.connection cimport Connection, Receiver
from nsqx.client.subscription cimport Subscription
from nsqx.wire cimport packing
from nsqx.wire.responses cimport FrameReader

cdef Py_ssize_t _FIRST_CAPACITY
cdef Py_ssize_t _FULL_BYTES


@cython.final
cdef class Columns:
    cdef readonly str topic
    cdef readonly str node
    cdef readonly Py_ssize_t count
    cdef readonly list ids
    cdef readonly bytearray id_values
    cdef readonly bytearray values
    cdef readonly bytearray ends
    cdef readonly bytearray times
    cdef readonly bytearray attempts
    cdef Py_ssize_t _capacity
    cdef int32_t[::1] _ends
    cdef int64_t[::1] _times
    cdef int32_t[::1] _attempts

    @cython.locals(count=Py_ssize_t)
    cpdef add(self, bytes message_id, int64_t time_ns, unsigned int attempts, bytes value)
    cdef _grow(self)
    cpdef int64_t time_ns(self, Py_ssize_t place)
    cpdef int attempt(self, Py_ssize_t place)
    @cython.locals(place=Py_ssize_t, found=Py_ssize_t)
    cpdef Py_ssize_t count_until(self, int64_t time_ns)


cdef class ColumnReceiver(Receiver):
    cdef readonly Subscription subscription
    cdef readonly Py_ssize_t pending_count
    cdef str _topic
    cdef object _arrived
    cdef object _clock
    cdef Columns _columns
    cdef list _full
    cdef bint _has_new

    @cython.locals(columns=Columns)
    cpdef message(self, FrameReader reader)
    cpdef drained(self)
    cpdef response(self, bytes data)
    cpdef refusal(self, str text)
    cpdef writable(self)
    cpdef lost(self, object error)
    cpdef Columns take(self)
    @cython.locals(subscription=Subscription, connection=Connection, output=bytearray, message_id=bytes)
    cpdef finish(self, list ids)
