cimport cython
from libc.stdint cimport int64_t

from nsqx.nsqd.channel cimport Channel
from nsqx.nsqd.client cimport Client
from nsqx.nsqd.topic cimport Topic
from nsqx.nsqd.group_commit cimport GroupCommit
from nsqx.nsqd.turn cimport ByteReceiver, Turn
from nsqx.wire cimport byteops
from nsqx.wire.commands cimport CommandReader

cdef int _NEED_DATA
cdef int _FINISH
cdef int _LINE
cdef int _SIZE
cdef int _BODY
cdef int _BATCH
cdef int _PUBLISH
cdef bytes _OK
cdef int _DEBUG
cdef int _SUBSCRIBED
cdef int _CLOSING
cdef int64_t _SLICE
cdef Py_ssize_t _SLICE_COUNT
cdef int64_t _PUBLISH_COST
cdef int64_t _LINE_COST
cdef int64_t _LOGGED_COST


@cython.final
cdef class ClientSession(ByteReceiver):
    cdef readonly Client client
    cdef public int64_t command_count
    cdef readonly object effect
    cdef readonly bint has_more
    cdef object _broker
    cdef object _log
    cdef Turn _turn
    cdef GroupCommit _commits
    cdef CommandReader _reader
    cdef int64_t _max_msg_size
    cdef int64_t _max_body_size
    cdef bint _is_over
    cdef object _awaited
    cdef int64_t _budget
    cdef bint _is_debugging
    cdef list _stalled
    cdef Channel _channel
    cdef bytes _command
    cdef str _topic_name
    cdef Topic _topic
    cdef int64_t _defer_ns
    cdef str _repeated_name
    cdef Topic _repeated_topic

    cpdef proceed(self)
    @cython.locals(level=int)
    cdef _run(self)
    @cython.locals(reader=CommandReader, event=int)
    cdef bint _step(self) except -1
    cdef _send(self, bytes frame)
    cdef _act_on_line(self, list words)
    cdef _require_allowed(self, bytes name)
    cdef str _publish_topic(self, list words, Py_ssize_t needed, str prefix)
    cdef _expect_body(self)
    cdef _check_size(self, int64_t size)
    cdef _act_on_body(self)
    @cython.locals(item=bytes, topic=Topic)
    cdef _publish_one(self, str command, int64_t defer_ns)
    cdef _remember(self, Topic topic)
    @cython.locals(topic=Topic)
    cdef _publish_again(self, bytes item)
    @cython.locals(items=bytes, count=Py_ssize_t, topic=Topic)
    cdef _publish_batch(self)
    @cython.locals(client=Client)
    cdef _acknowledge(self, str command, int64_t count, Topic topic)
    cdef _authorize(self, str command, str topic_name, str channel_name)
    @cython.locals(channel=Channel)
    cdef _finish(self, bytes message_id)


cdef str _text(bytes word)
