cimport cython
from libc.stdint cimport int64_t

from nsqx.queues.files cimport write_buffers
from nsqx.queues.log.batch cimport LogBatch


@cython.final
cdef class CommitFile:
    cdef readonly str path
    cdef readonly object header
    cdef public int64_t position
    cdef public int64_t next_serial
    cdef public bint is_doubtful
    cdef public dict last_counts
    cdef public dict numbers
    cdef int64_t _zeros_size
    cdef int64_t _used_size
    cdef int _descriptor

    cpdef open_once(self)
    cpdef write(self, list buffers)
    @cython.locals(size=int64_t, end=int64_t, zeros_size=int64_t)
    cdef _write_frames(self, list buffers)
    cpdef sync(self)


@cython.locals(batch=LogBatch, size=int64_t)
cpdef list encode_frame(object header, object serial, object synced_below, object highest_id, list entries)
