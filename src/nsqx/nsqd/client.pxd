cimport cython
from libc.stdint cimport int64_t

from nsqx.nsqd.output cimport OutputBuffer

cdef int _SUBSCRIBED
cdef Py_ssize_t _OUTPUT_LIMIT


@cython.final
cdef class Client:
    cdef public int64_t id
    cdef public str remote_address
    cdef public str remote_host
    cdef public object link
    cdef public int64_t connected_at_s
    cdef public str version
    cdef public int state
    cdef public str client_id
    cdef public str hostname
    cdef public str user_agent
    cdef public str topology_region
    cdef public str topology_zone
    cdef public int64_t heartbeat_interval_ns
    cdef public int64_t output_buffer_size
    cdef public int64_t output_buffer_timeout_ns
    cdef public int64_t msg_timeout_ns
    cdef public int sample_rate
    cdef public bint deflate
    cdef public bint snappy
    cdef public bint has_nsqx
    cdef public bint tls
    cdef public str tls_version
    cdef public str tls_cipher_suite
    cdef public str tls_common_name
    cdef public str tls_negotiated_protocol
    cdef public bint tls_negotiated_protocol_is_mutual
    cdef public bint authed
    cdef public str auth_identity
    cdef public str auth_identity_url
    cdef public object channel
    cdef public int64_t ready_count
    cdef public int64_t in_flight_count
    cdef public bint writable
    cdef public bint is_in_ready_list
    cdef public int locality
    cdef public int64_t message_count
    cdef public int64_t finish_count
    cdef public int64_t requeue_count
    cdef public dict pub_counts
    cdef readonly OutputBuffer output
    cdef public bint has_unsent
    cdef public bint is_ending
    cdef object _when_sent

    cpdef bint is_ready(self) noexcept
    cpdef published(self, str topic_name, int64_t count)
    @cython.locals(was_held=bint, released=bytearray)
    cpdef bint flush(self) except *
