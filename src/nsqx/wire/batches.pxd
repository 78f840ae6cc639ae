cimport cython

from nsqx.wire cimport byteops

cdef Py_ssize_t _SLICE_COUNT
cdef Py_ssize_t _SLICE_BYTES


@cython.final
cdef class LineSlices:
    cdef bytes _body
    cdef Py_ssize_t _position
    cdef Py_ssize_t _end
    cdef readonly Py_ssize_t count

    @cython.locals(
        body=bytes,
        items=bytearray,
        position=Py_ssize_t,
        end=Py_ssize_t,
        limit=Py_ssize_t,
        count=Py_ssize_t,
        newline=Py_ssize_t,
    )
    cpdef bytes next(self)


@cython.final
cdef class BatchSlices:
    cdef bytes _items
    cdef Py_ssize_t _position
    cdef Py_ssize_t _end
    cdef readonly Py_ssize_t count

    @cython.locals(items=bytes, position=Py_ssize_t, start=Py_ssize_t, limit=Py_ssize_t, count=Py_ssize_t)
    cpdef bytes next(self)
