cimport cython


@cython.final
cdef class RequestReader:
    cdef public int phase
    cdef public object refused
    cdef public bint wants_continue
    cdef object _server
    cdef bytes _data
    cdef Py_ssize_t _position
    cdef bytearray _head
    cdef object _request
    cdef Py_ssize_t _body_left
    cdef object _too_big
    cdef readonly object _pieces
    cdef readonly object _chunks

    cpdef add(self, bytes data)
    @cython.locals(data=bytes, phase=int)
    cpdef object next(self, object connection)
    cpdef stop(self)
    @cython.locals(place=Py_ssize_t, end=Py_ssize_t, raw=bytes)
    cdef object _read_head(self, object connection, bytes data)
    @cython.locals(searched=Py_ssize_t, head=bytearray)
    cdef _add_to_head(self, bytes data)
    @cython.locals(end=Py_ssize_t)
    cdef object _begin_body(self, object request, bytes data, Py_ssize_t place)
    @cython.locals(place=Py_ssize_t, size=Py_ssize_t, end=Py_ssize_t)
    cdef object _read_body(self, bytes data)
    cdef object _read_chunks(self, bytes data)
    cdef object _finish_body(self, bytes body)


cdef object _fixed_answer(object request)
cdef object _limit_of(object request)
