cimport cython
from libc.stdint cimport int64_t, uint32_t

from nsqx.queues.files cimport write_buffers
from nsqx.queues.log.batch cimport LogBatch
from nsqx.queues.log.index cimport SegmentIndex


@cython.final
cdef class LogSegment:
    cdef readonly object first
    cdef public int64_t size
    cdef readonly str path
    cdef readonly uint32_t seed
    cdef public SegmentIndex index
    cdef object _max_time

    cpdef SegmentIndex loaded_index(self)


@cython.final
cdef class SegmentWriter:
    cdef readonly str directory
    cdef readonly object identity
    cdef readonly object state
    cdef readonly list segments
    cdef readonly int64_t written_count
    cdef readonly int64_t written_size
    cdef readonly int64_t synced_count
    cdef public bint must_roll
    cdef public int64_t removable_end
    cdef public bint is_new
    cdef readonly bint is_unsynced
    cdef public int64_t max_size
    cdef public int64_t keep_from
    cdef public bint is_roll_wanted
    cdef int _descriptor
    cdef int64_t _position
    cdef int64_t _synced_position
    cdef int64_t _head_size
    cdef str _temporary
    cdef list _unsynced
    cdef bint _has_new_name
    cdef bint _has_batches
    cdef list _unremoved

    cpdef bint has_room(self, int64_t size)
    @cython.locals(batch=LogBatch, start=Py_ssize_t, index=Py_ssize_t, room=int64_t)
    cpdef write(self, list batches)
    @cython.locals(
        segment=LogSegment, batch=LogBatch, index=SegmentIndex, position=int64_t, synced_below=int64_t, buffers=list
    )
    cdef _append(self, list batches)
    cdef _create_directory(self)
