cimport cython
from libc.stdint cimport int64_t

from nsqx.nsqd.classic_store cimport ClassicStore
from nsqx.nsqd.group_commit cimport GroupCommit
from nsqx.nsqd.topic_flow cimport TopicFlow
from nsqx.nsqd.turn cimport Turn
from nsqx.queues.backlog cimport Backlog
from nsqx.queues.diskqueue cimport DiskQueue
from nsqx.queues.ids cimport IdSource
from nsqx.wire cimport byteops
from nsqx.wire.message cimport Batch, QueuedMessage, new_batch, new_message


@cython.final
cdef class BacklogMove:
    cdef readonly int64_t first_record
    cdef readonly int64_t count
    cdef public int64_t pending_count
    cdef public bint is_void


# Not final, as ClassicStore.
cdef class ClassicFlow(TopicFlow):
    cdef object _topic
    cdef object _broker
    cdef Turn _turn
    cdef GroupCommit _commits
    cdef object _clock
    cdef IdSource _ids
    cdef Backlog _backlog
    cdef DiskQueue _disk
    cdef list _stores
    cdef bint _is_flowing
    cdef bint _is_open
    cdef bint _is_awake
    cdef object _moves
    cdef int64_t _moving_count
    cdef object _due_times

    @cython.locals(now_ns=int64_t, batch=Batch)
    cpdef publish(self, bytes items, Py_ssize_t count)
    @cython.locals(message=QueuedMessage)
    cpdef publish_deferred(self, bytes body, int64_t defer_ns)
    @cython.final
    @cython.locals(stores=list, index=Py_ssize_t, store=ClassicStore)
    cdef _fan_out(self, Batch batch)
    @cython.final
    @cython.locals(store=ClassicStore)
    cdef _fan_out_message(self, QueuedMessage message)
