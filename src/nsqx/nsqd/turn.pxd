cimport cython
from libc.stdint cimport int64_t

from nsqx.nsqd.client cimport Client
from nsqx.nsqd.busy_poll cimport BusyPoll


@cython.final
cdef class Commit:
    cdef readonly list clients
    cdef readonly list callbacks
    cdef public int64_t pending_count
    cdef public object failure
    cdef public bint is_done


@cython.final
cdef class Turn:
    cdef public bint has_failures
    cdef readonly BusyPoll busy_poll
    cdef object _call_soon
    cdef object _durability
    cdef int64_t _commit_at
    cdef list _unsynced
    cdef list _clients
    cdef list _pumps
    cdef list _writers
    cdef dict _commits
    cdef bint _is_running
    cdef bint _is_scheduled

    cpdef receive(self, object receiver, bytes data)
    cpdef send_to(self, Client client)
    cpdef close(self, Client client)
    cpdef wake(self, object pump)
    cpdef write_for(self, object pump)
    cpdef sync_later(self, object queue)
    @cython.locals(commit=Commit)
    cpdef hold(self, Client client, str command, object topic)
    cpdef when_written(self, object callback, object topic)
    cdef Commit _commit_of(self, object topic)
    cdef _leave(self)
    cdef _end(self)
    cdef _schedule(self)
    cdef _run_pumps(self)
    cdef _finish_turn(self)
    @cython.locals(client=Client)
    cdef _flush_clients(self)
