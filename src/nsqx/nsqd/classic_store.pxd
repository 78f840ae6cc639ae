cimport cython
from libc.stdint cimport int64_t

from nsqx.nsqd.channel cimport Channel
from nsqx.nsqd.channel_store cimport ChannelStore
from nsqx.nsqd.client cimport Client
from nsqx.nsqd.group_commit cimport GroupCommit
from nsqx.nsqd.ready_clients cimport ReadyClients
from nsqx.queues.backlog cimport Backlog
from nsqx.queues.deadlines cimport Deferred, InFlight
from nsqx.queues.diskqueue cimport DiskQueue
from nsqx.wire cimport byteops
from nsqx.wire.message cimport Batch, QueuedMessage

cdef int64_t _NEVER_NS


# Cython refuses a final class whose .pxd declares overridden methods, so the private methods are final instead.
cdef class ClassicStore(ChannelStore):
    cdef readonly str name
    cdef readonly DiskQueue disk
    cdef readonly int64_t lost_count
    cdef Channel _channel
    cdef object _broker
    cdef GroupCommit _commits
    cdef object _clock
    cdef Backlog _backlog
    cdef InFlight _in_flight
    cdef Deferred _deferred
    cdef dict _due_ns
    cdef dict _failed
    cdef int64_t _recorded_count

    @cython.locals(channel=Channel, may_skip_disk=bint)
    cpdef put_batch(self, Batch batch)
    cpdef put_message(self, QueuedMessage message)
    cpdef put_moved(self, QueuedMessage message, bint is_new=*)
    cpdef refuse_if_full(self, int64_t count)
    @cython.final
    cdef _put_back(self, QueuedMessage message)
    @cython.final
    @cython.locals(client=Client)
    cdef _deliver_or_drop(self, QueuedMessage message)
    @cython.final
    cdef _defer(self, QueuedMessage message, int64_t due_ns)
    cpdef bint has_messages(self) except -1
    @cython.locals(earliest_ns=int64_t, client=Client, message=QueuedMessage)
    cpdef int64_t hand_out(self, ReadyClients ready, int64_t now_ns) except? -1
    @cython.final
    @cython.locals(now_ns=int64_t, earliest_ns=int64_t, client=Client)
    cdef _hand_out_batch(self, ReadyClients ready, Batch batch)
    @cython.final
    cdef _deliver(self, Client client, QueuedMessage message, int64_t now_ns)
    @cython.final
    @cython.locals(existing=QueuedMessage)
    cdef _resolve_duplicate_id(self, QueuedMessage message, int64_t now_ns)
    @cython.final
    cdef bint _fails(self, QueuedMessage message) except -1
    @cython.locals(message=QueuedMessage)
    cpdef expire(self, int64_t now_ns)
    cpdef int64_t next_deadline(self) except? -1
    @cython.locals(message=QueuedMessage)
    cpdef object finish(self, Client client, bytes message_id)
    @cython.locals(message=QueuedMessage)
    cpdef object requeue(self, Client client, bytes message_id, int64_t delay_ns)
    @cython.locals(message=QueuedMessage)
    cpdef object touch(self, Client client, bytes message_id, int64_t max_timeout_ns)
