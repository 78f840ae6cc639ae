# The compiled half of byteops.py: same names, same meaning, no bounds checks.

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    static inline const uint8_t *nsqx_octets(PyObject *data) {
        return (const uint8_t *)(PyBytes_Check(data) ? PyBytes_AS_STRING(data) : PyByteArray_AS_STRING(data));
    }
    static inline uint32_t nsqx_load32(const uint8_t *p) {
        uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v);
    }
    static inline uint64_t nsqx_load64(const uint8_t *p) {
        uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v);
    }
    static inline void nsqx_store32(uint8_t *p, uint32_t v) { v = __builtin_bswap32(v); memcpy(p, &v, 4); }
    static inline void nsqx_store64(uint8_t *p, uint64_t v) { v = __builtin_bswap64(v); memcpy(p, &v, 8); }
    static inline void nsqx_store16(uint8_t *p, uint16_t v) { p[0] = (uint8_t)(v >> 8); p[1] = (uint8_t)v; }

    /* Spread 8 nibbles over 8 bytes, then convert each to its digit without a branch. */
    static inline uint64_t nsqx_hex8(uint32_t v) {
        uint64_t x = v;
        x = ((x & 0xFFFF0000ULL) << 16) | (x & 0xFFFFULL);
        x = ((x << 8) | x) & 0x00FF00FF00FF00FFULL;
        x = ((x << 4) | x) & 0x0F0F0F0F0F0F0F0FULL;
        uint64_t letters = ((x + 0x0606060606060606ULL) >> 4) & 0x0101010101010101ULL;
        return x + 0x3030303030303030ULL + letters * 0x27;
    }
    static inline void nsqx_store_id(uint8_t *p, uint64_t number) {
        nsqx_store64(p, nsqx_hex8((uint32_t)(number >> 32)));
        nsqx_store64(p + 8, nsqx_hex8((uint32_t)number));
    }
    /* Python grows a bytearray by one eighth at a time, which copies the output of many messages about nine times. A
       size below half of the allocation would make Python shrink it, so grow by less than a factor of two. */
    static inline int nsqx_make_room(PyObject *out, Py_ssize_t size) {
        if (size < ((PyByteArrayObject *)out)->ob_alloc) return 0;
        return PyByteArray_Resize(out, size + size / 4 * 3);
    }
    /* The number of a message id; -1 if it is not 16 hexadecimal digits, or negative. */
    static inline int64_t nsqx_load_id(const uint8_t *p) {
        uint64_t number = 0;
        for (int i = 0; i < 16; i++) {
            uint8_t c = p[i];
            if (c >= '0' && c <= '9') number = number << 4 | (uint64_t)(c - '0');
            else if (c >= 'a' && c <= 'f') number = number << 4 | (uint64_t)(c - 'a' + 10);
            else return -1;
        }
        return (int64_t)number < 0 ? -1 : (int64_t)number;
    }
    static inline int nsqx_is_finish(const uint8_t *p) {
        if (memcmp(p, "FIN ", 4) != 0 || p[20] != 10) return 0;
        for (int i = 4; i < 20; i++) {
            uint8_t c = p[i];
            if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) return 0;
        }
        return 1;
    }
    """
    const uint8_t *nsqx_octets(object data)
    uint32_t nsqx_load32(const uint8_t *p)
    uint64_t nsqx_load64(const uint8_t *p)
    void nsqx_store32(uint8_t *p, uint32_t v)
    void nsqx_store64(uint8_t *p, uint64_t v)
    void nsqx_store16(uint8_t *p, uint16_t v)
    void nsqx_store_id(uint8_t *p, uint64_t number)
    int64_t nsqx_load_id(const uint8_t *p)
    bint nsqx_is_finish(const uint8_t *p)
    int nsqx_make_room(object out, Py_ssize_t size) except -1


cdef inline int32_t int32_at(object data, Py_ssize_t position):
    return <int32_t>nsqx_load32(nsqx_octets(data) + position)


cdef inline int64_t int64_at(object data, Py_ssize_t position):
    return <int64_t>nsqx_load64(nsqx_octets(data) + position)


cdef inline unsigned int uint16_at(object data, Py_ssize_t position):
    cdef const uint8_t *p = nsqx_octets(data) + position
    return (<unsigned int>p[0] << 8) | p[1]


cdef inline bytes cut(object data, Py_ssize_t start, Py_ssize_t end):
    return PyBytes_FromStringAndSize(<const char *>nsqx_octets(data) + start, end - start)


cdef inline int copy_into(bytearray out, Py_ssize_t position, object data, Py_ssize_t start, Py_ssize_t end) except -1:
    memcpy(PyByteArray_AS_STRING(out) + position, nsqx_octets(data) + start, end - start)
    return 0


cdef inline bint is_greater_id(object data, Py_ssize_t position, object other, Py_ssize_t other_position):
    return memcmp(nsqx_octets(data) + position, nsqx_octets(other) + other_position, 16) > 0


cdef inline Py_ssize_t newline_at(object data, Py_ssize_t start, Py_ssize_t end):
    cdef const uint8_t *p = nsqx_octets(data)
    if end <= start:
        return -1
    cdef const uint8_t *found = <const uint8_t *>memchr(p + start, 10, end - start)
    return -1 if found == NULL else found - p


cdef inline bint begins_with(object data, bytes text, Py_ssize_t start, Py_ssize_t end):
    cdef Py_ssize_t size = PyBytes_GET_SIZE(text)
    return end - start >= size and memcmp(nsqx_octets(data) + start, PyBytes_AS_STRING(text), size) == 0


cdef inline bint is_finish(object data, Py_ssize_t position):
    return nsqx_is_finish(nsqx_octets(data) + position)


cdef inline bytes id_text(int64_t number):
    cdef bytes text = PyBytes_FromStringAndSize(NULL, 16)
    nsqx_store_id(<uint8_t *>PyBytes_AS_STRING(text), <uint64_t>number)
    return text


cdef inline int64_t id_number(bytes message_id):
    return nsqx_load_id(<const uint8_t *>PyBytes_AS_STRING(message_id)) if PyBytes_GET_SIZE(message_id) == 16 else -1


cdef inline uint8_t *_grow(bytearray out, Py_ssize_t size) except NULL:
    cdef Py_ssize_t used = PyByteArray_GET_SIZE(out)
    nsqx_make_room(out, used + size)
    PyByteArray_Resize(out, used + size)
    return <uint8_t *>PyByteArray_AS_STRING(out) + used


cdef inline int append_sized(bytearray out, bytes data, Py_ssize_t start, Py_ssize_t end) except -1:
    cdef Py_ssize_t size = end - start
    cdef uint8_t *p = _grow(out, 4 + size)
    nsqx_store32(p, <uint32_t>size)
    memcpy(p + 4, PyBytes_AS_STRING(data) + start, size)
    return 0


cdef inline int append_message(bytearray out, int64_t timestamp, unsigned int attempts, bytes message_id, bytes body) except -1:
    cdef Py_ssize_t size = PyBytes_GET_SIZE(body)
    cdef uint8_t *p = _grow(out, 34 + size)
    nsqx_store32(p, <uint32_t>(30 + size))
    nsqx_store32(p + 4, 2)
    nsqx_store64(p + 8, <uint64_t>timestamp)
    nsqx_store16(p + 16, <uint16_t>attempts)
    memcpy(p + 18, PyBytes_AS_STRING(message_id), 16)
    memcpy(p + 34, PyBytes_AS_STRING(body), size)
    return 0


cdef inline int append_message_from(
    bytearray out, int64_t timestamp, unsigned int attempts, int64_t number, bytes data, Py_ssize_t start, Py_ssize_t end
) except -1:
    cdef Py_ssize_t size = end - start
    cdef uint8_t *p = _grow(out, 34 + size)
    nsqx_store32(p, <uint32_t>(30 + size))
    nsqx_store32(p + 4, 2)
    nsqx_store64(p + 8, <uint64_t>timestamp)
    nsqx_store16(p + 16, <uint16_t>attempts)
    nsqx_store_id(p + 18, <uint64_t>number)
    memcpy(p + 34, PyBytes_AS_STRING(data) + start, size)
    return 0


cdef inline int append_record(bytearray out, int64_t timestamp, unsigned int attempts, bytes message_id, bytes body) except -1:
    cdef Py_ssize_t size = PyBytes_GET_SIZE(body)
    cdef uint8_t *p = _grow(out, 30 + size)
    nsqx_store32(p, <uint32_t>(26 + size))
    nsqx_store64(p + 4, <uint64_t>timestamp)
    nsqx_store16(p + 12, <uint16_t>attempts)
    memcpy(p + 14, PyBytes_AS_STRING(message_id), 16)
    memcpy(p + 30, PyBytes_AS_STRING(body), size)
    return 0


cdef inline int append_record_from(bytearray out, int64_t timestamp, int64_t number, bytes data, Py_ssize_t start, Py_ssize_t end) except -1:
    cdef Py_ssize_t size = end - start
    cdef uint8_t *p = _grow(out, 30 + size)
    nsqx_store32(p, <uint32_t>(26 + size))
    nsqx_store64(p + 4, <uint64_t>timestamp)
    nsqx_store16(p + 12, 0)
    nsqx_store_id(p + 14, <uint64_t>number)
    memcpy(p + 30, PyBytes_AS_STRING(data) + start, size)
    return 0
