cimport cython
from libc.stdint cimport int64_t

from nsqx.queues.log.batch cimport LogBatch
from nsqx.queues.log.tail cimport LogTail
from nsqx.wire cimport byteops

cdef int _FOUND
cdef int _UNREAD
cdef int _MISSING
cdef int64_t _NEVER_NS


@cython.final
cdef class LogReader:
    cdef readonly bytes data
    cdef readonly Py_ssize_t start
    cdef readonly Py_ssize_t end
    cdef readonly int64_t timestamp
    cdef public int64_t ttl_ns
    cdef readonly int64_t expires_ns
    cdef readonly bint is_addressed
    cdef object _log
    cdef LogTail _tail
    cdef object _blocks
    cdef object _block
    cdef LogBatch _batch
    cdef int64_t _batch_first
    cdef int64_t _batch_end
    cdef int64_t _at

    @cython.locals(found=int, position=Py_ssize_t)
    cpdef int find(self, int64_t offset) except -1
    @cython.locals(batch=LogBatch)
    cdef int _open_batch(self, int64_t offset) except -1
    cpdef int64_t block_end(self) except? -1
    cpdef release(self)
