cimport cython
from libc.stdint cimport int32_t, int64_t

from nsqx.client.connection cimport NsqdConnection, FrameReceiver
from nsqx.client.subscription cimport Subscription
from nsqx.wire cimport byteops, encode
from nsqx.wire.responses cimport FrameReader

cdef Py_ssize_t _ID_BYTES
cdef Py_ssize_t _FIRST_CAPACITY
cdef Py_ssize_t _FULL_BYTES
cdef Py_ssize_t _SPARE_COUNT
cdef Py_ssize_t _SPARE_BYTES


@cython.final
cdef class Columns:
    cdef readonly str topic
    cdef readonly str node
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t size
    cdef public bint is_suspect
    cdef readonly bytearray id_values
    cdef readonly bytearray values
    cdef readonly bytearray ends
    cdef readonly bytearray times
    cdef readonly bytearray attempts
    cdef Py_ssize_t _capacity
    cdef int32_t[::1] _ends
    cdef int64_t[::1] _times
    cdef int32_t[::1] _attempts

    @cython.locals(count=Py_ssize_t, end=Py_ssize_t)
    cpdef add(self, FrameReader reader)
    cdef _grow(self)
    cpdef clear(self)
    cpdef bytes message_id(self, Py_ssize_t place)
    cpdef int64_t time_ns(self, Py_ssize_t place)
    cpdef int attempt(self, Py_ssize_t place)
    @cython.locals(place=Py_ssize_t, oldest=int64_t)
    cpdef int64_t oldest_ns(self)
    @cython.locals(place=Py_ssize_t, newest=int64_t)
    cpdef int64_t newest_ns(self)
    @cython.locals(place=Py_ssize_t, found=Py_ssize_t)
    cpdef Py_ssize_t count_until(self, int64_t time_ns)
    @cython.locals(place=Py_ssize_t, greatest=Py_ssize_t)
    cpdef bytes greatest_if_new(self, bytes boundary)


cdef class ColumnReceiver(FrameReceiver):
    cdef readonly str topic
    cdef readonly str broker
    cdef readonly str node
    cdef readonly Subscription subscription
    cdef readonly Py_ssize_t pending_count
    cdef object _arrived
    cdef object _clock
    cdef Columns _columns
    cdef list _full
    cdef list _spares
    cdef bint _has_new
    cdef bint _is_held

    @cython.locals(columns=Columns)
    cpdef message(self, FrameReader reader)
    cpdef drained(self)
    cpdef response(self, bytes data)
    cpdef refusal(self, str text)
    cpdef writable(self)
    cpdef lost(self, object error)
    @cython.locals(columns=Columns)
    cpdef suspect(self)
    @cython.locals(columns=Columns)
    cpdef Columns take(self)
    cdef _set_aside(self)
    @cython.locals(subscription=Subscription, connection=NsqdConnection, count=Py_ssize_t)
    cpdef finish(self, Columns columns)
