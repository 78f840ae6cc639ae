cimport cython

from nsqx.nsqd.client cimport Client
from nsqx.nsqd.busy_poll cimport BusyPoll


cdef class ByteReceiver:
    cpdef receive(self, bytes data)


@cython.final
cdef class Turn:
    cdef readonly BusyPoll busy_poll
    cdef object _call_soon
    cdef list _clients
    cdef list _pumps
    cdef list _late_work
    cdef bint _is_running
    cdef bint _is_scheduled

    cpdef receive(self, ByteReceiver receiver, bytes data)
    cpdef send_to(self, Client client)
    cpdef close(self, Client client)
    cpdef wake(self, object pump)
    cpdef end_later(self, object work)
    cdef _leave(self)
    cdef _end(self)
    cdef _schedule(self)
    @cython.locals(late_work=list)
    cdef _do_late_work(self)
    cdef _run_pumps(self)
    @cython.locals(client=Client)
    cdef _send(self)
