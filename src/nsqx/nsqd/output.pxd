cimport cython


@cython.final
cdef class OutputBuffer:
    cdef public bytearray frames
    cdef readonly bint is_held
    cdef readonly bint has_failed
    cdef object _commit
    cdef str _command
    cdef list _sealed

    cpdef bint seal(self, object commit, str command) except *
    @cython.locals(released=bytearray)
    cpdef bytearray release(self)
    cdef bytearray _release_done(self)
