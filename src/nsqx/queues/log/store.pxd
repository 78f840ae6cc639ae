cimport cython
from libc.stdint cimport int64_t

from nsqx.queues.log.batch cimport LogBatch
from nsqx.queues.log.commit_file cimport CommitFile
from nsqx.queues.log.jobs cimport CommitJob, SegmentWrite
from nsqx.queues.log.log cimport TopicLog

cdef int64_t _FRAMES_AT
cdef int64_t _FRAME_OVERHEAD
cdef int64_t _ENTRY_OVERHEAD
cdef Py_ssize_t _MAX_UNSYNCED_SEGMENTS


@cython.final
cdef class LogStore:
    cdef CommitFile _active
    cdef list _again
    cdef object _boot_id
    cdef dict _changed
    cdef object _checkpoint
    cdef CommitJob _commit
    cdef object _damaged_paths
    cdef object _data_path
    cdef list _deleted
    cdef object _deleted_directories
    cdef dict _deleting
    cdef list _files
    cdef dict _finished
    cdef list _free
    cdef object _generation
    cdef bint _is_clean
    cdef bint _is_recovering
    cdef list _joined
    cdef object _logger
    cdef dict _pending
    cdef object _recovered
    cdef readonly list _skipping
    cdef object _synced_below
    cdef dict _unsafe
    cdef list _unsynced
    cdef CommitFile _unsynced_file
    cdef set _unsynced_segments
    cdef int64_t _unsynced_size
    cdef list _unused_paths
    cdef readonly object damaged_count
    cdef readonly object failure
    cdef readonly object highest_id
    cdef readonly bint is_full
    cdef readonly dict logs
    cdef public object options

    @cython.locals(log=TopicLog, framed=list, direct=list, file=CommitFile, is_first=bint, job=CommitJob)
    cpdef CommitJob begin_commit(self, bint is_synced)
    @cython.locals(
        log=TopicLog, size=int64_t, room=int64_t, max_size=int64_t, framed=list, direct=list, groups=list, taken=list,
        batches=list
    )
    cdef tuple _select(self, int64_t direct_size)
    cdef bint _can_write_segment(self, TopicLog log) except -1
    @cython.locals(log=TopicLog, size=int64_t, file=CommitFile)
    cdef CommitFile _file_for(self, list framed, list direct)
    @cython.locals(log=TopicLog, batches=list, entries=list, file=CommitFile)
    cdef _give(self, CommitJob job)
    cdef _give_log(self, TopicLog log, list batches)
    @cython.locals(file=CommitFile)
    cdef _add_entries(self, list entries, CommitJob job, TopicLog log, list batches)
    @cython.locals(log=TopicLog, batch=LogBatch, batches=list, write=SegmentWrite, file=CommitFile, taken=list)
    cpdef end_commit(self, CommitJob job)
    @cython.locals(batch=LogBatch, failed_count=int64_t)
    cdef _end_direct(self, TopicLog log, list batches)
    @cython.locals(log=TopicLog)
    cdef _note_synced(self, CommitFile file)
    cdef _settle(self, TopicLog log)
    @cython.locals(log=TopicLog, size=int64_t)
    cdef int64_t _tails_size(self) except -1


@cython.locals(batch=LogBatch, size=int64_t)
cdef int64_t _frame_size(TopicLog log, list batches) except -1
