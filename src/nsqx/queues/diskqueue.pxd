cimport cython
from libc.stdint cimport int64_t

from nsqx.queues cimport checksums
from nsqx.queues.record_reader cimport RecordReader
from nsqx.wire cimport byteops
from nsqx.wire.message cimport Batch, QueuedMessage


cdef class DiskQueue:
    cdef readonly str name
    cdef readonly int64_t depth
    cdef readonly int64_t lost_count
    cdef str _directory
    cdef int64_t _max_file_size
    cdef int64_t _max_record_size
    cdef object _log
    cdef object _on_pending
    cdef object _remove_files
    cdef int64_t _read_file
    cdef RecordReader _reader
    cdef int64_t _write_file
    cdef int64_t _write_position
    cdef bytearray _pending
    cdef int64_t _pending_count
    cdef readonly object failure
    cdef int64_t _read_serial
    cdef dict _unfinished
    cdef int64_t _oldest_file
    cdef tuple _oldest_at
    cdef int64_t _oldest_ns
    cdef bint _finishes_all
    cdef bint _is_announced
    cdef int _write_descriptor
    cdef int64_t _prepared_file
    cdef bytearray _sums
    cdef int64_t _sums_start
    cdef list _unsaved_sums
    cdef set _bad_paths
    cdef list _left_paths
    cdef int64_t _operations
    cdef bint _sync_wanted
    cdef object _job
    cdef object _records
    cdef int64_t _named_file
    cdef list _full_descriptors
    cdef list _finished_paths

    cpdef put_message(self, QueuedMessage message)
    @cython.locals(size=Py_ssize_t, start=Py_ssize_t)
    cpdef put_batch(self, Batch batch)
    cdef _note_appended(self)
    @cython.locals(position=int64_t)
    cdef _make_room(self, int64_t body_size)
    cdef bint _try_write_pending(self) except -1
    @cython.locals(is_next=bint)
    cdef _written(self)
    cpdef bint finish(self, int64_t record) except -1
    cpdef int64_t put_serial(self)
    cpdef bint is_awaited(self)
    cpdef bint has_unsynced(self)
    cpdef bint has_readable(self)
    @cython.locals(size=Py_ssize_t, position=int64_t)
    cpdef QueuedMessage get(self)
    cpdef int64_t peek_timestamp(self) except? -1
    @cython.locals(size=Py_ssize_t, is_last=bint)
    cdef Py_ssize_t _next_size(self) except -1
