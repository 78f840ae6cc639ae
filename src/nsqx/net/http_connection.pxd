cimport cython

from nsqx.net.request_reader cimport RequestReader

cdef int _REQUESTS_PER_SLICE
cdef Py_ssize_t _LARGE_CHUNK
cdef Py_ssize_t _MAX_PENDING_ANSWERS
cdef Py_ssize_t _MAX_PENDING_BYTES


cdef class HTTPConnection:
    cdef object __weakref__
    cdef public str remote
    cdef public object tls
    cdef object _server
    cdef readonly RequestReader _reader
    cdef object _transport
    cdef int _descriptor
    cdef int _stage
    cdef double _deadline
    cdef Py_ssize_t _body_bytes
    cdef bint _reading_paused
    cdef bint _write_paused
    cdef bint _waits_turn
    cdef Py_ssize_t _unsent
    cdef bint _running
    cdef object _body
    cdef bint _pumping
    cdef object _first
    cdef object _last
    cdef Py_ssize_t _pending_count
    cdef Py_ssize_t _pending_bytes
    cdef list _out
    cdef Py_ssize_t _out_size
    cdef readonly bint _eof
    cdef bint _lingers
    cdef Py_ssize_t _drop_left

    @cython.locals(reader=RequestReader, was_head=bint)
    cpdef data_received(self, bytes data)
    cpdef work(self)
    cdef _wait_turn(self)
    @cython.locals(reader=RequestReader, phase=int, left=int)
    cdef _pump(self, bint head_begun)
    cdef _expect_more(self, int phase, bint head_begun)
    cdef _dispatch(self, object request)
    cdef _link(self, object request)
    cpdef answered(self, object request)
    cdef _send_ready(self)
    cdef _unlink_first(self)
    @cython.locals(wire=bytes)
    cdef _emit(self, object request, object response)
    @cython.locals(out=list)
    cdef _flush(self)
    @cython.locals(sent=Py_ssize_t)
    cdef bytes _send(self, bytes data)
    @cython.locals(reader=RequestReader, stage=int)
    cdef _settle(self)
    cdef _settle_idle(self)
    cdef bytes _start_body(self, object request, object response)
    cpdef bint write(self, bytes data)
    cdef bint _must_wait(self)
    cdef bint _is_busy(self)
    cdef bint _has_many_pending(self)
    cdef _pause_reading(self)
    cdef _resume_reading(self)
