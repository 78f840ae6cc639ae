cimport cython
from libc.stdint cimport int64_t

from nsqx.nsqd.log_commits cimport LogCommits
from nsqx.nsqd.topic_flow cimport TopicFlow
from nsqx.queues.log.log cimport TopicLog


# Not final, as ClassicFlow.
cdef class LogFlow(TopicFlow):
    cdef readonly bint is_synced
    cdef readonly object reads
    cdef object _topic
    cdef object _broker
    cdef object _clock
    cdef LogCommits _logs
    cdef TopicLog _log
    cdef list _cursors
    cdef bint _is_flowing
    cdef int64_t _limit
    cdef int64_t _limit_number
    cdef readonly int64_t released
    cdef readonly int64_t released_number
    cdef int64_t _end_number
    cdef list _due
    cdef int64_t _held_from
    cdef int64_t _held_deferred
    cdef object _unreleased_due
    cdef object _due_reader
    cdef object _due_timer
    cdef int64_t _due_timer_ns
    cdef bint _is_reading
    cdef bint _is_loading_index
    cdef dict _refused
    cdef int64_t _duplicate_count
    cdef int64_t _forgotten_count
    cdef int64_t _dropped_count
    cdef public int64_t room
    cdef readonly object retention

    @cython.locals(now_ns=int64_t)
    cpdef publish(self, bytes items, Py_ssize_t count)
    cpdef publish_deferred(self, bytes body, int64_t defer_ns)
    @cython.locals(end=int64_t, number=int64_t, count=int64_t)
    cpdef release(self)
