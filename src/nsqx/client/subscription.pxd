cimport cython
from libc.stdint cimport int64_t

from nsqx.client.connection cimport NsqdConnection, FrameReceiver
from nsqx.wire cimport encode
from nsqx.wire.responses cimport FrameReader

cdef int _UNANSWERED
cdef int _FINISHED
cdef int _REQUEUED


cdef class Subscription(FrameReceiver)


@cython.final
@cython.freelist(256)
cdef class Message:
    cdef readonly bytes id
    cdef readonly bytes body
    cdef readonly int64_t timestamp
    cdef readonly unsigned int attempts
    cdef readonly bint is_detached
    cdef public object value
    cdef public object error
    cdef int _state
    cdef Subscription _subscription

    cpdef finish(self)
    cpdef touch(self)


cdef class Subscription(FrameReceiver):
    cdef readonly NsqdConnection connection
    cdef readonly int64_t max_ready_count
    cdef readonly int64_t ready_count
    cdef readonly int64_t in_flight_count
    cdef readonly int64_t message_count
    cdef readonly int64_t finish_count
    cdef readonly int64_t requeue_count
    cdef readonly double ready_at_s
    cdef readonly double last_message_s
    cdef readonly object log_place
    cdef public bint is_backing_off
    cdef readonly bint is_closing
    cdef object _owner
    cdef object _rdy
    cdef object _dispatcher
    cdef object _messages
    cdef object _requeue_delay_s
    cdef object _clock
    cdef bint _has_new

    @cython.locals(message=Message)
    cpdef message(self, FrameReader reader)
    cpdef drained(self)
    cpdef response(self, bytes data)
    cpdef refusal(self, str text)
    cpdef lost(self, object error)
    @cython.locals(is_sent=bint)
    cpdef finish(self, Message message)
    @cython.locals(is_sent=bint)
    cpdef requeue(self, Message message, double delay_s, bint backoff)
    cpdef touch(self, Message message)
    cpdef end_close(self)
    cdef _close_if_done(self)
