cimport cython
from libc.stdint cimport int64_t

from nsqx.nsqd.channel cimport Channel
from nsqx.nsqd.channel_store cimport ChannelStore
from nsqx.nsqd.client cimport Client
from nsqx.nsqd.ready_clients cimport ReadyClients
from nsqx.queues.log.reader cimport LogReader
from nsqx.queues.log.window cimport Window
from nsqx.wire cimport byteops
from nsqx.wire.message cimport advance_id

cdef int _FOUND
cdef int _UNREAD
cdef int _DONE
cdef int _WINDOW_NOT_IN_FLIGHT
cdef int64_t _NEVER_NS
cdef int64_t _NODE_MASK
cdef Py_ssize_t _OUTPUT_LIMIT


# Cython refuses a final class whose .pxd declares overridden methods, so the private methods are final instead.
cdef class LogCursor(ChannelStore):
    cdef Channel _channel
    cdef object _flow
    cdef object _log
    cdef object _logs
    cdef object _clock
    cdef object _dead_letters
    cdef int64_t _first_id
    cdef int64_t _first_linear_id
    cdef int64_t _max_delay_ns
    cdef int64_t _max_waiting
    cdef object _reads
    cdef LogReader _new_reader
    cdef LogReader _again_reader
    cdef bint _is_reading
    cdef bint _is_changed
    cdef int64_t _released
    cdef int64_t _released_number
    cdef int64_t _run_end
    cdef int64_t _next_number
    cdef int64_t _start_number
    cdef int64_t _number
    cdef Window _window
    cdef dict _early_due
    cdef readonly int64_t dropped_count
    cdef readonly int64_t expired_count

    @cython.locals(channel=Channel)
    cpdef arrived(self, int64_t released, int64_t released_number, int64_t count)
    @cython.final
    @cython.locals(excess=int64_t, count=int64_t)
    cdef _drop_oldest(self)
    cpdef bint has_messages(self) except -1
    @cython.locals(
        window=Window, channel=Channel, reader=LogReader, chosen=Client, client=Client, released=int64_t, earliest_ns=int64_t,
        offset=int64_t, is_new=bint, found=int, attempts=int64_t, room=int64_t, frames=bytearray, expired_count=int64_t
    )
    cpdef int64_t hand_out(self, ReadyClients ready, int64_t now_ns) except? -1
    @cython.final
    @cython.locals(window=Window, first=int64_t)
    cdef bint _find_run(self) except -1
    @cython.final
    cdef _skip_to(self, int64_t offset)
    cpdef expire(self, int64_t now_ns)
    cpdef int64_t next_deadline(self) except? -1
    @cython.final
    cdef int64_t _offset(self, int64_t id_number) noexcept
    @cython.locals(id_number=int64_t, result=int)
    cpdef object finish(self, Client client, bytes message_id)
    cpdef bint finish_number(self, Client client, int64_t id_number) except -1
    @cython.locals(due_ns=int64_t, limit=int64_t, result=int)
    cpdef object requeue(self, Client client, bytes message_id, int64_t delay_ns)
    @cython.locals(now_ns=int64_t, offset=int64_t, result=int)
    cpdef object touch(self, Client client, bytes message_id, int64_t max_timeout_ns)
