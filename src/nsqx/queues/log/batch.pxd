cimport cython
from libc.stdint cimport int64_t, uint32_t

from nsqx.queues cimport checksums
from nsqx.queues.log cimport heads

cdef int64_t _MAX_UNSYNCED


@cython.final
cdef class LogBatch:
    cdef readonly int kind
    cdef readonly int64_t first
    cdef readonly int64_t count
    cdef readonly int64_t timestamp
    cdef readonly bytes items
    cdef readonly bytes sums
    cdef readonly bytes extension
    cdef readonly int64_t synced_below
    cdef readonly bint has_offsets
    cdef readonly int64_t end
    cdef readonly Py_ssize_t size
    cdef uint32_t _tail_crc

    @cython.locals(head=bytes, unsynced=int64_t)
    cpdef bytes head(self, uint32_t seed, int64_t synced_below, int64_t unsynced_size=*)


cdef uint32_t _tail_crc(bytes extension, bytes sums)


cpdef LogBatch new_batch(int kind, int64_t first, Py_ssize_t count, int64_t timestamp, bytes items, bytes extension=*)
