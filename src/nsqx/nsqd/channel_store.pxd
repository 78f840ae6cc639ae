from libc.stdint cimport int64_t

from nsqx.nsqd.client cimport Client
from nsqx.nsqd.ready_clients cimport ReadyClients
from nsqx.wire cimport byteops


cdef class ChannelStore:
    cpdef bint has_messages(self) except -1
    cpdef int64_t hand_out(self, ReadyClients ready, int64_t now_ns) except? -1
    cpdef expire(self, int64_t now_ns)
    cpdef int64_t next_deadline(self) except? -1
    cpdef object finish(self, Client client, bytes message_id)
    cpdef bint finish_number(self, Client client, int64_t id_number) except -1
    cpdef object requeue(self, Client client, bytes message_id, int64_t delay_ns)
    cpdef object touch(self, Client client, bytes message_id, int64_t max_timeout_ns)
