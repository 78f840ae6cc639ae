cimport cython
from libc.stdint cimport int64_t

from nsqx.nsqd.client cimport Client

cdef int _ELSEWHERE


@cython.final
cdef class ReadyClients:
    cdef list _elsewhere
    cdef Py_ssize_t _next
    cdef list _near
    cdef bint _has_near

    cpdef bint has_any(self) noexcept
    cpdef bint add(self, Client client) except -1
    @cython.locals(clients=list)
    cpdef remove(self, Client client)
    @cython.locals(client=Client)
    cpdef Client next(self)
    @cython.locals(client=Client, near=list, clients=list)
    cdef Client _find(self)
    cpdef int64_t room(self, Client client) noexcept
