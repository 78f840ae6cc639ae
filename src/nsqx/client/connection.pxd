cimport cython

from nsqx.wire cimport encode
from nsqx.wire.responses cimport FrameReader

cdef Py_ssize_t _LARGE
cdef int _NEED_DATA
cdef int _OK_RUN
cdef int _MESSAGE
cdef int _HEARTBEAT
cdef int _RESPONSE
cdef int _ERROR


cdef class FrameReceiver:
    cpdef ok(self, Py_ssize_t count)
    cpdef message(self, FrameReader reader)
    cpdef response(self, bytes data)
    cpdef refusal(self, str text)
    cpdef drained(self)
    cpdef writable(self)
    cpdef lost(self, object error)


@cython.final
cdef class NsqdConnection:
    cdef readonly str address
    cdef public FrameReceiver receiver
    cdef public bytearray output
    cdef readonly bint is_closed
    cdef readonly bint is_writable
    cdef object _loop
    cdef object _transport
    cdef object _layers
    cdef FrameReader _reader
    cdef bint _is_setting_up
    cdef object _answer
    cdef bint _has_unsent
    cdef object _flush_callback
    cdef object _reason
    cdef double _read_timeout_s
    cdef double _write_timeout_s
    cdef double _read_at_s
    cdef object _timer
    cdef object _write_timer
    cdef Py_ssize_t _blocked_size

    @cython.locals(reader=FrameReader, receiver=FrameReceiver, event=int)
    cdef _run(self)
    @cython.locals(reader=FrameReader, event=int)
    cdef _run_setup(self)
    cpdef send(self, bytes command)
    cpdef send_sized(self, bytes head, bytes body)
    cpdef flush_soon(self)
    @cython.locals(output=bytearray)
    cpdef _flush(self)
    cpdef close(self)
    cpdef fail(self, object error)
