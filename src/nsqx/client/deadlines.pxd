cdef class Deadlines:
    cdef readonly double earliest_s
    cdef object _expire
    cdef object _loop
    cdef object _timer
