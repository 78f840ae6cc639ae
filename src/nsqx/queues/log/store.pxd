cimport cython
from libc.stdint cimport int64_t

from nsqx.queues.log.batch cimport LogBatch
from nsqx.queues.log.log cimport TopicLog


@cython.final
cdef class LogStore:
    cdef object _active
    cdef list _again
    cdef object _boot_id
    cdef dict _changed
    cdef object _checkpoint
    cdef object _commit
    cdef object _damaged_paths
    cdef object _data_path
    cdef object _deleted
    cdef object _deleted_directories
    cdef object _deleting
    cdef object _files
    cdef object _finished
    cdef object _free
    cdef object _generation
    cdef bint _is_clean
    cdef bint _is_recovering
    cdef object _joined
    cdef object _logger
    cdef dict _pending
    cdef object _recovered
    cdef object _skipping
    cdef object _synced_below
    cdef dict _unsafe
    cdef list _unsynced
    cdef object _unsynced_file
    cdef set _unsynced_segments
    cdef int64_t _unsynced_size
    cdef object _unused_paths
    cdef readonly object damaged_count
    cdef readonly object failure
    cdef readonly object highest_id
    cdef readonly bint is_full
    cdef readonly dict logs
    cdef public object options

    @cython.locals(log=TopicLog, size=int64_t, room=int64_t, max_size=int64_t, framed=list, direct=list)
    cdef tuple _select(self, int64_t direct_size)
    @cython.locals(log=TopicLog, size=int64_t)
    cdef object _file_for(self, list framed, list direct)
    @cython.locals(log=TopicLog, batch=LogBatch)
    cdef list _entries(self, object job, object log, object batches)
    @cython.locals(log=TopicLog, batch=LogBatch)
    cpdef end_commit(self, object job)
    @cython.locals(log=TopicLog)
    cdef _note_synced(self, object file)
    cdef _settle(self, TopicLog log)


@cython.locals(batch=LogBatch, size=int64_t)
cdef int64_t _frame_size(TopicLog log, object batches) except -1
