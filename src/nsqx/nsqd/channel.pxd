cimport cython
from libc.stdint cimport int64_t

from nsqx.nsqd.client cimport Client
from nsqx.nsqd.turn cimport Turn
from nsqx.queues.backlog cimport Backlog
from nsqx.queues.deadlines cimport Deferred, InFlight
from nsqx.wire cimport byteops
from nsqx.wire.message cimport Batch, QueuedMessage

cdef int64_t _NEVER_NS
cdef int _ELSEWHERE


@cython.final
cdef class Channel:
    cdef readonly str topic_name
    cdef readonly str name
    cdef readonly bint is_ephemeral
    cdef readonly bint paused
    cdef readonly bint exiting
    cdef readonly dict clients
    cdef readonly InFlight in_flight
    cdef readonly Deferred deferred
    cdef readonly object latency
    cdef readonly int64_t message_count
    cdef readonly int64_t requeue_count
    cdef readonly int64_t timeout_count
    cdef readonly int64_t zone_local_msg_count
    cdef readonly int64_t region_local_msg_count
    cdef readonly int64_t global_msg_count
    cdef readonly Backlog backlog
    cdef object _broker
    cdef Turn _turn
    cdef object _clock
    cdef int64_t _max_consumers
    cdef list _ready
    cdef list _ready_near
    cdef bint _has_near
    cdef Py_ssize_t _next
    cdef bint _is_awake
    cdef object _timer
    cdef int64_t _timer_ns
    cdef dict _due_ns
    cdef int64_t _recorded_count
    cdef readonly int64_t lost_count

    cpdef put_batch(self, Batch batch)
    cpdef put_message(self, QueuedMessage message)
    cpdef put_moved(self, QueuedMessage message)
    cdef _put_back(self, QueuedMessage message)
    cdef _deliver_or_drop(self, QueuedMessage message)
    cpdef _defer(self, QueuedMessage message, int64_t due_ns)
    cdef _wake(self)
    @cython.locals(now_ns=int64_t, earliest_ns=int64_t, client=Client, message=QueuedMessage)
    cpdef pump(self)
    @cython.locals(now_ns=int64_t, earliest_ns=int64_t, client=Client)
    cdef _deliver_batch(self, Batch batch)
    @cython.locals(client=Client, near=list, ready=list)
    cdef Client _next_ready(self)
    cdef _deliver(self, Client client, QueuedMessage message, int64_t now_ns)
    @cython.locals(existing=QueuedMessage)
    cdef _resolve_duplicate_id(self, QueuedMessage message, int64_t now_ns)
    cpdef add_if_ready(self, Client client)
    @cython.locals(message=QueuedMessage)
    cpdef object finish(self, Client client, bytes message_id)
    @cython.locals(message=QueuedMessage)
    cpdef object requeue(self, Client client, bytes message_id, int64_t delay_ns)
    @cython.locals(message=QueuedMessage)
    cpdef object touch(self, Client client, bytes message_id)
    cpdef _arm(self, int64_t deadline_ns)
    @cython.locals(message=QueuedMessage, client=Client)
    cdef _put_back_late(self, int64_t now_ns)
