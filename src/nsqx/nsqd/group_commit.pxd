cimport cython
from libc.stdint cimport int64_t

from nsqx.nsqd.client cimport Client
from nsqx.nsqd.turn cimport Turn


@cython.final
cdef class DueQueues:
    cdef object _services
    cdef int64_t _delay_ns
    cdef object _handler
    cdef dict _queues
    cdef object _timer
    cdef bint _is_closed

    cpdef add(self, object queue)


@cython.final
cdef class Commit:
    cdef readonly list clients
    cdef readonly list callbacks
    cdef public int64_t pending_count
    cdef public object failure
    cdef public bint is_done


@cython.final
cdef class GroupCommit:
    cdef readonly bint has_failures
    cdef readonly str failure
    cdef public object threads
    cdef Turn _turn
    cdef object _services
    cdef object _log
    cdef int64_t _sync_every
    cdef int64_t _commit_at
    cdef bint _is_writing
    cdef dict _writers
    cdef list _log_writes
    cdef dict _commits
    cdef set _failing
    cdef DueQueues _soon
    cdef DueQueues _later
    cdef dict _overdue
    cdef set _saves
    cdef dict _released
    cdef list _after_writes
    cdef bint _is_closing

    @cython.locals(commit=Commit)
    cpdef hold(self, Client client, str command, object topic)
    cpdef when_written(self, object callback, object topic)
    cdef Commit _commit_of(self, object topic)
    @cython.locals(client=Client)
    cpdef _confirm(self, Commit commit, object failure)
    cpdef write_later(self, object queue, object pump)
    cpdef write_logs_later(self, object write)
    cdef _write_at_end(self)
    @cython.locals(log_writes=list, writers=dict, commits=dict, outcomes=dict, after_writes=list)
    cpdef _write(self)
    @cython.locals(written=list)
    cdef _begin(self, Commit commit, object topic, dict outcomes)
    cpdef sync_later(self, object queue)
