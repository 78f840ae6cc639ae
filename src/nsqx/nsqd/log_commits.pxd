cimport cython
from libc.stdint cimport int64_t

from nsqx.nsqd.free_disk cimport FreeDisk
from nsqx.nsqd.group_commit cimport GroupCommit
from nsqx.nsqd.histogram cimport Histogram
from nsqx.nsqd.turn cimport Turn
from nsqx.queues.log.batch cimport LogBatch
from nsqx.queues.log.jobs cimport CommitJob, SegmentWrite
from nsqx.queues.log.log cimport TopicLog
from nsqx.queues.log.store cimport LogStore

cdef int64_t _INLINE_SIZE
cdef int64_t _INLINE_NS
cdef int64_t _GATHER_NS
cdef int64_t _REST_COMMITS


@cython.final
cdef class _Waiter:
    cdef readonly TopicLog log
    cdef readonly int64_t batch_count
    cdef readonly bint is_synced
    cdef readonly object done


@cython.final
cdef class LogCommits:
    cdef dict _changed
    cdef object _changes_timer
    cdef object _checkpoint
    cdef int64_t _checkpoint_start_ns
    cdef object _clock
    cdef CommitJob _commit
    cdef int64_t _commit_start_ns
    cdef GroupCommit _commits
    cdef int64_t _committed_count
    cdef int64_t _crowd
    cdef object _data_path
    cdef object _end_commit_in_turn
    cdef object _finished_timer
    cdef readonly dict _flows
    cdef public FreeDisk _free_disk
    cdef int64_t _gather_rest
    cdef int64_t _gather_until_ns
    cdef object _ids
    cdef bint _is_closing
    cdef bint _has_sync_failed
    cdef bint _is_gathering
    cdef bint _is_noted
    cdef bint _is_quick
    cdef bint _is_sync_wanted
    cdef bint _is_wanted
    cdef object _logger
    cdef int64_t _request_count
    cdef object _retry_timer
    cdef object _services
    cdef object _space_timer
    cdef readonly LogStore _store
    cdef int64_t _sync_timeout_ns
    cdef object _sync_timer
    cdef Turn _turn
    cdef list _waiters
    cdef dict _watchers
    cdef public object blocks
    cdef readonly Histogram checkpoints
    cdef public int64_t cold_read_count
    cdef readonly Histogram commits
    cdef public int64_t damaged_count
    cdef readonly object failure
    cdef readonly Histogram messages
    cdef public object options

    cpdef write_later(self, bint is_synced=*)
    cpdef refuse_if_full(self, int64_t now_ns, object flow=*)
    cpdef bint when_committed(self, TopicLog log, bint is_synced, object done)
    cpdef _write(self)
    cdef _begin_or_gather(self)
    cpdef _gather(self)
    @cython.locals(waiter=_Waiter, store=LogStore, is_synced=bint, job=CommitJob)
    cpdef _begin_commit(self)
    cdef _collect_changes(self)
    @cython.locals(start_ns=int64_t, now_ns=int64_t)
    cdef _run(self, CommitJob job)
    cpdef _end_commit(self, CommitJob job)
    @cython.locals(
        store=LogStore, batch=LogBatch, batches=list, taken=list, write=SegmentWrite, duration_ns=int64_t,
        message_count=int64_t
    )
    cdef _end_commit_at(self, CommitJob job, int64_t now_ns)
    cdef _release(self, TopicLog log)
    @cython.locals(waiter=_Waiter)
    cdef _settle(self)
    cdef _find_finished_later(self)


cdef bint _is_done(_Waiter waiter)
