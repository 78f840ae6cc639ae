cimport cython
from libc.stdint cimport int64_t

cdef Py_ssize_t _MAX_BUFFERS


@cython.locals(start=Py_ssize_t, size=int64_t, written=int64_t)
cpdef write_buffers(str kind, int descriptor, object buffers, int64_t position)
