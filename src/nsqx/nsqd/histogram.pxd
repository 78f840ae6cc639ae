cimport cython
from libc.stdint cimport int64_t


@cython.final
cdef class Histogram:
    cdef readonly tuple bounds
    cdef readonly list counts
    cdef readonly int64_t sum

    @cython.locals(index=Py_ssize_t, bound=int64_t)
    cpdef add(self, int64_t number)
