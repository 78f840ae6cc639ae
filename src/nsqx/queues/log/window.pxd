cimport cython
from libc.stdint cimport int64_t

cdef int64_t _MAX_SLOTS
cdef int64_t _NEVER_NS
cdef int _DONE
cdef int _NOT_IN_FLIGHT
cdef int _NOT_OWNER
cdef int64_t _FINISHED
cdef int64_t _IS_WAITING
cdef int64_t _UNREPORTED


@cython.final
cdef class Stray:
    cdef readonly int64_t client_id
    cdef readonly int64_t delivered_ns
    cdef public int64_t deadline_ns
    cdef readonly int64_t timestamp
    cdef readonly int64_t attempts


@cython.final
cdef class Window:
    cdef readonly int64_t next
    cdef readonly int64_t in_flight_count
    cdef readonly int64_t again_count
    cdef readonly int64_t timestamp
    cdef int64_t _base
    cdef int64_t _mask
    cdef int64_t[::1] _clients
    cdef int64_t[::1] _delivered
    cdef int64_t[::1] _deadlines
    cdef int64_t[::1] _timestamps
    cdef int64_t[::1] _attempts
    cdef dict _strays
    cdef dict _waiting
    cdef object _again
    cdef list _due
    cdef dict _due_at
    cdef set _aside
    cdef list _failed
    cdef bint _gave_again
    cdef int64_t _earliest_ns
    cdef list _runs
    cdef int64_t _run_start
    cdef int64_t _run_end
    cdef int64_t _unreported_count
    cdef int64_t _lowest_unreported
    cdef dict _requeued

    cpdef int64_t floor(self) except -1
    cpdef int64_t choose(self, int64_t end) except? -1
    @cython.locals(deadline_ns=int64_t)
    cpdef int64_t deliver(
        self, int64_t offset, int64_t client_id, int64_t now_ns, int64_t timeout_ns, int64_t timestamp
    ) except -1
    @cython.locals(attempts=int64_t)
    cdef int64_t _deliver_again(
        self, int64_t offset, int64_t client_id, int64_t now_ns, int64_t deadline_ns, int64_t timestamp
    ) except -1
    cdef void _fill(
        self, int64_t index, int64_t client_id, int64_t now_ns, int64_t deadline_ns, int64_t timestamp, int64_t attempts
    ) noexcept
    @cython.locals(offset=int64_t)
    cpdef hold(self, int64_t attempts, int64_t due_ns)
    cpdef discard(self, int64_t offset)
    cpdef skip_to(self, int64_t offset)
    cdef _advance(self)
    cdef _make_room(self)
    @cython.locals(index=int64_t)
    cdef _move_oldest(self)
    @cython.locals(mask=int64_t, size=int64_t)
    cdef _double(self)
    @cython.locals(index=int64_t, owner=int64_t)
    cpdef int finish(self, int64_t offset, int64_t client_id) except -1
    @cython.locals(stray=Stray)
    cdef int _finish_stray(self, int64_t offset, int64_t client_id) except -1
    @cython.locals(owner=int64_t)
    cpdef int requeue(self, int64_t offset, int64_t client_id, int64_t due_ns, int64_t max_attempts=*) except -1
    @cython.locals(owner=int64_t, index=int64_t, deadline_ns=int64_t, stray=Stray)
    cpdef int touch(
        self, int64_t offset, int64_t client_id, int64_t now_ns, int64_t timeout_ns, int64_t max_timeout_ns
    ) except -1
    @cython.locals(stray=Stray)
    cdef int64_t _owner(self, int64_t offset) except? -1
    @cython.locals(index=int64_t, attempts=int64_t, client_id=int64_t, stray=Stray)
    cdef _put_back(self, int64_t offset, int64_t due_ns, int64_t max_attempts)
    cdef _queue(self, int64_t offset, int64_t due_ns)
    cpdef int64_t next_deadline(self) except? -1
    @cython.locals(index=int64_t, earliest_ns=int64_t, stray=Stray)
    cpdef list expire(self, int64_t now_ns, int64_t limit, int64_t max_attempts=*)
    cpdef int64_t release_due(self, int64_t now_ns, int64_t limit) except -1
    cpdef bint is_in_flight(self, int64_t offset) except -1
    @cython.locals(copy=Window)
    cpdef Window copy(self)
    cpdef list take_failed(self)
    cpdef bint take_out(self, int64_t offset) except -1
    @cython.locals(index=int64_t, offset=int64_t)
    cpdef int64_t count_below(self, int64_t first) except -1
    @cython.locals(index=int64_t, offset=int64_t)
    cpdef list trim(self, int64_t first)
    cpdef bint has_changes(self) except -1
    cdef _note_finished(self, int64_t offset)
    @cython.locals(offset=int64_t, index=int64_t)
    cdef _report(self)
    cdef _note_run(self, int64_t start, int64_t end)
    cdef _close_run(self)
