cimport cython
from libc.stdint cimport int64_t

from nsqx.nsqd.client cimport Client
from nsqx.nsqd.pace cimport Pace


@cython.final
cdef class Turn:
    cdef public bint has_failures
    cdef readonly Pace pace
    cdef object _call_soon
    cdef object _on_write
    cdef list _unsynced
    cdef object _on_unsynced
    cdef object _commit
    cdef int64_t _commit_at
    cdef list _clients
    cdef list _pumps
    cdef list _writers
    cdef list _held
    cdef list _waiting
    cdef bint _is_scheduled
    cdef bint _is_committing

    cpdef send_to(self, Client client)
    cpdef close(self, Client client)
    cpdef wake(self, object pump)
    cpdef write_for(self, object pump)
    cpdef used(self, object queue)
    cpdef hold(self, Client client, str command)
    cpdef when_written(self, object callback)
    cpdef end(self)
    cdef _schedule(self)
    cdef _run_pumps(self)
    cdef _finish_turn(self)
    @cython.locals(client=Client)
    cdef _flush_clients(self)
