cimport cython
from libc.stdint cimport int64_t

from nsqx.queues.log.batch cimport LogBatch, new_batch
from nsqx.queues.log.segment cimport SegmentWriter
from nsqx.queues.log.tail cimport LogTail

cdef int64_t _GATHER_NS
cdef Py_ssize_t _GATHER_SIZE


@cython.final
cdef class TopicLog:
    cdef readonly object identity
    cdef readonly object state
    cdef readonly SegmentWriter writer
    cdef readonly LogTail tail
    cdef readonly int64_t written
    cdef readonly int64_t stable
    cdef readonly int64_t pending_size
    cdef readonly bint is_deleted
    cdef public bint is_removed
    cdef public bint is_writing
    cdef int64_t _lease_step
    cdef object _on_pending
    cdef list _gathered
    cdef int64_t _gathered_first
    cdef int64_t _gathered_count
    cdef Py_ssize_t _gathered_size
    cdef int64_t _gathered_ns
    cdef readonly list _pending
    cdef readonly object _held
    cdef int64_t _held_from
    cdef readonly int64_t given_count
    cdef int64_t _given_size
    cdef readonly int64_t written_count
    cdef readonly int64_t safe_count
    cdef public int64_t direct_count
    cdef readonly int64_t durable_end
    cdef readonly int64_t durable_serial
    cdef readonly object commit_seed
    cdef readonly int64_t identity_size
    cdef int64_t _lease_count

    @cython.locals(size=Py_ssize_t, first=int64_t)
    cpdef int64_t gather(self, bytes items, Py_ssize_t count, int64_t timestamp) except -1
    @cython.locals(items=bytes, batch=LogBatch)
    cdef _end_gathering(self)
    @cython.locals(end=int64_t)
    cdef _renew_lease(self, int64_t count)
    cdef _add(self, LogBatch batch)
    cpdef bint has_pending(self)
    cpdef bint is_lease_wanted(self)
    cpdef bint is_frame_unsafe(self)
    cpdef bint is_segment_unsynced(self)
    @cython.locals(batch=LogBatch, size=int64_t)
    cpdef give(self, list batches)
    @cython.locals(batch=LogBatch)
    cpdef note_written(self, list batches)
    @cython.locals(first=int64_t, end=int64_t)
    cpdef list unwritten(self, int64_t count)
    cpdef note_safe(self, int64_t count)
    @cython.locals(batch=LogBatch)
    cpdef LogBatch batch_at(self, int64_t offset)
