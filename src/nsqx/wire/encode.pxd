# The compiled half of encode.py: same names, same meaning.

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy

from nsqx.wire.byteops cimport nsqx_store32


cdef inline int append_sized(bytearray out, bytes head, bytes body) except -1:
    cdef Py_ssize_t used = PyByteArray_GET_SIZE(out)
    cdef Py_ssize_t head_size = PyBytes_GET_SIZE(head)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(body)
    PyByteArray_Resize(out, used + head_size + 4 + size)
    cdef uint8_t *p = <uint8_t *>PyByteArray_AS_STRING(out) + used
    memcpy(p, PyBytes_AS_STRING(head), head_size)
    nsqx_store32(p + head_size, <uint32_t>size)
    memcpy(p + head_size + 4, PyBytes_AS_STRING(body), size)
    return 0


cdef inline int append_sized_line(bytearray out, bytes head, Py_ssize_t size) except -1:
    cdef Py_ssize_t used = PyByteArray_GET_SIZE(out)
    cdef Py_ssize_t head_size = PyBytes_GET_SIZE(head)
    PyByteArray_Resize(out, used + head_size + 4)
    cdef uint8_t *p = <uint8_t *>PyByteArray_AS_STRING(out) + used
    memcpy(p, PyBytes_AS_STRING(head), head_size)
    nsqx_store32(p + head_size, <uint32_t>size)
    return 0


cdef inline int append_finish(bytearray out, bytes message_id) except -1:
    cdef Py_ssize_t used = PyByteArray_GET_SIZE(out)
    PyByteArray_Resize(out, used + 21)
    cdef uint8_t *p = <uint8_t *>PyByteArray_AS_STRING(out) + used
    memcpy(p, <const char *>b"FIN ", 4)
    memcpy(p + 4, PyBytes_AS_STRING(message_id), 16)
    p[20] = 10
    return 0


cdef inline int append_finishes(bytearray out, bytearray ids, Py_ssize_t count) except -1:
    cdef Py_ssize_t used = PyByteArray_GET_SIZE(out)
    PyByteArray_Resize(out, used + 21 * count)
    cdef uint8_t *p = <uint8_t *>PyByteArray_AS_STRING(out) + used
    cdef const char *message_id = PyByteArray_AS_STRING(ids)
    for _ in range(count):
        memcpy(p, <const char *>b"FIN ", 4)
        memcpy(p + 4, message_id, 16)
        p[20] = 10
        p += 21
        message_id += 16
    return 0


cdef inline bytes join_batch(list bodies):
    cdef Py_ssize_t size = 4
    cdef bytes body
    for body in bodies:
        size += 4 + PyBytes_GET_SIZE(body)
    cdef bytes joined = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t *p = <uint8_t *>PyBytes_AS_STRING(joined)
    nsqx_store32(p, <uint32_t>len(bodies))
    p += 4
    for body in bodies:
        size = PyBytes_GET_SIZE(body)
        nsqx_store32(p, <uint32_t>size)
        memcpy(p + 4, PyBytes_AS_STRING(body), size)
        p += 4 + size
    return joined
