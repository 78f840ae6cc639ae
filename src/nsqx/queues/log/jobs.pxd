cimport cython
from libc.stdint cimport int64_t

from nsqx.queues.log.batch cimport LogBatch
from nsqx.queues.log.commit_file cimport CommitFile
from nsqx.queues.log.log cimport TopicLog
from nsqx.queues.log.segment cimport SegmentWriter


@cython.final
cdef class SegmentWrite:
    cdef readonly TopicLog log
    cdef readonly int64_t size
    cdef public object error
    cdef list _batches
    cdef bint _is_synced

    @cython.locals(writer=SegmentWriter)
    cpdef run(self)


@cython.final
cdef class CommitJob:
    cdef readonly CommitFile file
    cdef readonly bint is_synced
    cdef public CommitFile unsynced_file
    cdef public list buffers
    cdef public int64_t size
    cdef public list bound
    cdef public list joined
    cdef readonly list framed
    cdef readonly list direct
    cdef public list earlier_writes
    cdef public list segment_writes
    cdef readonly object error
    cdef readonly CommitFile failed_sync

    @cython.locals(size=int64_t, write=SegmentWrite)
    cpdef bint is_brief(self, int64_t max_size)
    @cython.locals(file=CommitFile, write=SegmentWrite)
    cpdef run(self)
