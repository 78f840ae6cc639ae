cimport cython
from libc.stdint cimport int64_t

from nsqx.queues.log.batch cimport LogBatch


@cython.final
cdef class LogTail:
    cdef readonly int64_t size
    cdef list _batches
    cdef Py_ssize_t _start

    cpdef add(self, LogBatch batch)
    @cython.locals(index=Py_ssize_t, batch=LogBatch)
    cpdef LogBatch find(self, int64_t offset)
    @cython.locals(batches=list, low=Py_ssize_t, high=Py_ssize_t, middle=Py_ssize_t, batch=LogBatch)
    cdef Py_ssize_t _index_after(self, int64_t offset) except -1
    @cython.locals(batch=LogBatch)
    cpdef int64_t first_at(self, int64_t time_ns, int64_t offset) except? -1
    @cython.locals(batch=LogBatch, size=int64_t)
    cpdef int64_t drop_first(self) except -1
