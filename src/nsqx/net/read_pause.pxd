cimport cython


@cython.final
cdef class ReadPause:
    cdef object _transport
    cdef readonly int reasons

    cpdef add(self, int reason)
    cpdef remove(self, int reason)
