cimport cython

from nsqx.nsqd.client cimport Client


@cython.final
cdef class Turn:
    cdef object _call_soon
    cdef object _on_write
    cdef list _clients
    cdef list _pumps
    cdef list _writers
    cdef list _held
    cdef list _waiting
    cdef bint _is_scheduled

    cpdef send_to(self, Client client)
    cpdef close(self, Client client)
    cpdef wake(self, object pump)
    cpdef write_for(self, object pump)
    cpdef hold(self, Client client, str command)
    cpdef when_written(self, object callback)
    cpdef end(self)
    cdef _schedule(self)
    cdef _run_pumps(self)
    cdef list _write(self)
    @cython.locals(client=Client)
    cdef _flush_clients(self)
