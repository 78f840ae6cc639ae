cimport cython
from libc.stdint cimport int64_t

from nsqx.nsqd.channel_store cimport ChannelStore
from nsqx.nsqd.client cimport Client
from nsqx.nsqd.ready_clients cimport ReadyClients
from nsqx.nsqd.turn cimport Turn

cdef int _ELSEWHERE
cdef int _SAME_ZONE


@cython.final
cdef class Channel:
    cdef readonly str topic_name
    cdef readonly str name
    cdef readonly bint is_ephemeral
    cdef readonly bint paused
    cdef readonly bint exiting
    cdef readonly dict clients
    cdef readonly ReadyClients ready
    cdef readonly ChannelStore store
    cdef readonly object latency
    cdef readonly int64_t message_count
    cdef readonly int64_t requeue_count
    cdef readonly int64_t timeout_count
    cdef readonly int64_t zone_local_msg_count
    cdef readonly int64_t region_local_msg_count
    cdef readonly int64_t global_msg_count
    cdef public int64_t dead_count
    cdef public int64_t unmoved_count
    cdef readonly int64_t max_attempts
    cdef readonly str dead_letter
    cdef object _broker
    cdef Turn _turn
    cdef object _clock
    cdef int64_t _max_consumers
    cdef bint _is_awake
    cdef object _timer
    cdef int64_t _timer_ns

    cpdef arrived(self, int64_t count)
    cpdef delivered(self, Client client)
    cpdef finished(self, Client client, int64_t timestamp)
    cpdef requeued(self, Client client)
    @cython.locals(client=Client)
    cpdef timed_out(self, int64_t client_id)
    cpdef wake(self)
    cpdef arm(self, int64_t deadline_ns)
    cpdef pump(self)
    cpdef object finish(self, Client client, bytes message_id)
    cpdef object requeue(self, Client client, bytes message_id, int64_t delay_ns)
    cpdef object touch(self, Client client, bytes message_id)
    cpdef continue_as(self, Channel successor)
    cpdef add_if_ready(self, Client client)
