cimport cython
from libc.stdint cimport int64_t

from nsqx.spark.columns cimport Columns


@cython.final
cdef class Generation:
    cdef dict _index
    cdef list _runs

    @cython.locals(count=Py_ssize_t)
    cpdef add_all(self, Columns columns)
    cpdef dict times(self)


@cython.final
cdef class Memory:
    cdef Generation _young
    cdef Generation _old
    cdef dict _pinned
    cdef bytes _greatest
    cdef bytes _boundary
    cdef list _predecessors

    @cython.locals(each=Memory)
    cpdef connected(self, list predecessors)
    @cython.locals(greatest=bytes, doubtful=list, place=Py_ssize_t, message_id=bytes, time_ns=int64_t)
    cpdef list admit(self, Columns columns)
    @cython.locals(each=Memory)
    cpdef bint knows(self, bytes message_id, int64_t time_ns)
    cdef bint _has(self, bytes message_id, int64_t time_ns)
