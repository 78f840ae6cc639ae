# The compiled half of byteops.py: same names, same meaning, no bounds checks.

from cpython.bytearray cimport PyByteArray_AS_STRING
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

    /* The hexadecimal digits of 8 numbers below 16, one in each byte, without a branch. */
    static inline uint64_t nsqx_digits(uint64_t x) {
        uint64_t letters = ((x + 0x0606060606060606ULL) >> 4) & 0x0101010101010101ULL;
        return x + 0x3030303030303030ULL + letters * 0x27;
    }
    /* Spread 8 nibbles over 8 bytes, then convert each to its digit. */
    static inline uint64_t nsqx_hex8(uint32_t v) {
        uint64_t x = v;
        x = ((x & 0xFFFF0000ULL) << 16) | (x & 0xFFFFULL);
        x = ((x << 8) | x) & 0x00FF00FF00FF00FFULL;
        x = ((x << 4) | x) & 0x0F0F0F0F0F0F0F0FULL;
        return nsqx_digits(x);
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
    /* Append ``size`` bytes of any content, and return their address. */
    static inline uint8_t *nsqx_extend(PyObject *out, Py_ssize_t size) {
        PyByteArrayObject *array = (PyByteArrayObject *)out;
        Py_ssize_t used = Py_SIZE(out), end = used + size;
        if (array->ob_exports || array->ob_start - array->ob_bytes + end >= array->ob_alloc) {
            if (nsqx_make_room(out, end) < 0 || PyByteArray_Resize(out, end) < 0) return NULL;
        } else {
            Py_SET_SIZE(out, end);
            array->ob_start[end] = 0;
        }
        return (uint8_t *)array->ob_start + used;
    }
    /* The number of 8 hexadecimal digits; -1 if they are something else: then the digits of the number differ. */
    static inline int64_t nsqx_unhex8(uint64_t text) {
        uint64_t letters = (text >> 6) & 0x0101010101010101ULL;
        uint64_t x = ((text & 0x0F0F0F0F0F0F0F0FULL) + 9 * letters) & 0x0F0F0F0F0F0F0F0FULL;
        if (nsqx_digits(x) != text) return -1;
        x = (x | x >> 4) & 0x00FF00FF00FF00FFULL;
        x = (x | x >> 8) & 0x0000FFFF0000FFFFULL;
        return (int64_t)(uint32_t)(x | x >> 16);
    }
    /* The number of a message id; -1 if it is not 16 hexadecimal digits, or negative. */
    static inline int64_t nsqx_load_id(const uint8_t *p) {
        int64_t upper = nsqx_unhex8(nsqx_load64(p)), lower = nsqx_unhex8(nsqx_load64(p + 8));
        return (upper | lower) < 0 || upper >> 31 ? -1 : upper << 32 | lower;
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
    int64_t nsqx_unhex8(uint64_t text)
    uint8_t *nsqx_extend(object out, Py_ssize_t size) except NULL


cdef inline int32_t int32_at(object data, Py_ssize_t position) noexcept:
    return <int32_t>nsqx_load32(nsqx_octets(data) + position)


cdef inline int64_t int64_at(object data, Py_ssize_t position) noexcept:
    return <int64_t>nsqx_load64(nsqx_octets(data) + position)


cdef inline unsigned int uint16_at(object data, Py_ssize_t position) noexcept:
    cdef const uint8_t *p = nsqx_octets(data) + position
    return (<unsigned int>p[0] << 8) | p[1]


cdef inline bytes cut(object data, Py_ssize_t start, Py_ssize_t end):
    return PyBytes_FromStringAndSize(<const char *>nsqx_octets(data) + start, end - start)


cdef inline int copy_into(bytearray out, Py_ssize_t position, object data, Py_ssize_t start, Py_ssize_t end) except -1:
    memcpy(PyByteArray_AS_STRING(out) + position, nsqx_octets(data) + start, end - start)
    return 0


cdef inline bint is_greater_id(object data, Py_ssize_t position, object other, Py_ssize_t other_position) noexcept:
    return memcmp(nsqx_octets(data) + position, nsqx_octets(other) + other_position, 16) > 0


cdef inline Py_ssize_t newline_at(object data, Py_ssize_t start, Py_ssize_t end) noexcept:
    cdef const uint8_t *p = nsqx_octets(data)
    if end <= start:
        return -1
    cdef const uint8_t *found = <const uint8_t *>memchr(p + start, 10, end - start)
    return -1 if found == NULL else found - p


cdef inline bint begins_with(object data, bytes text, Py_ssize_t start, Py_ssize_t end) noexcept:
    cdef Py_ssize_t size = PyBytes_GET_SIZE(text)
    return end - start >= size and memcmp(nsqx_octets(data) + start, PyBytes_AS_STRING(text), size) == 0


cdef inline bint is_finish(object data, Py_ssize_t position) noexcept:
    cdef const uint8_t *p = nsqx_octets(data) + position
    return memcmp(p, b"FIN ", 4) == 0 and p[20] == 10


cdef inline int64_t hex32_at(object data, Py_ssize_t position) noexcept:
    return nsqx_unhex8(nsqx_load64(nsqx_octets(data) + position))


cdef inline bytes id_text(int64_t number):
    cdef bytes text = PyBytes_FromStringAndSize(NULL, 16)
    nsqx_store_id(<uint8_t *>PyBytes_AS_STRING(text), <uint64_t>number)
    return text


cdef inline int64_t id_number(bytes message_id) noexcept:
    return nsqx_load_id(<const uint8_t *>PyBytes_AS_STRING(message_id)) if PyBytes_GET_SIZE(message_id) == 16 else -1


cdef inline int64_t linear_id(int64_t number) noexcept:
    return ((number >> 22) << 12) | (number & 0xFFF)


cdef inline int append_sized(bytearray out, bytes data, Py_ssize_t start, Py_ssize_t end) except -1:
    cdef Py_ssize_t size = end - start
    cdef uint8_t *p = nsqx_extend(out, 4 + size)
    nsqx_store32(p, <uint32_t>size)
    memcpy(p + 4, PyBytes_AS_STRING(data) + start, size)
    return 0


cdef inline int append_message(bytearray out, int64_t timestamp, unsigned int attempts, bytes message_id, bytes body) except -1:
    cdef Py_ssize_t size = PyBytes_GET_SIZE(body)
    cdef uint8_t *p = nsqx_extend(out, 34 + size)
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
    cdef uint8_t *p = nsqx_extend(out, 34 + size)
    nsqx_store32(p, <uint32_t>(30 + size))
    nsqx_store32(p + 4, 2)
    nsqx_store64(p + 8, <uint64_t>timestamp)
    nsqx_store16(p + 16, <uint16_t>attempts)
    nsqx_store_id(p + 18, <uint64_t>number)
    memcpy(p + 34, PyBytes_AS_STRING(data) + start, size)
    return 0


cdef inline int append_record(bytearray out, int64_t timestamp, unsigned int attempts, bytes message_id, bytes body) except -1:
    cdef Py_ssize_t size = PyBytes_GET_SIZE(body)
    cdef uint8_t *p = nsqx_extend(out, 30 + size)
    nsqx_store32(p, <uint32_t>(26 + size))
    nsqx_store64(p + 4, <uint64_t>timestamp)
    nsqx_store16(p + 12, <uint16_t>attempts)
    memcpy(p + 14, PyBytes_AS_STRING(message_id), 16)
    memcpy(p + 30, PyBytes_AS_STRING(body), size)
    return 0


cdef inline int append_record_from(bytearray out, int64_t timestamp, int64_t number, bytes data, Py_ssize_t start, Py_ssize_t end) except -1:
    cdef Py_ssize_t size = end - start
    cdef uint8_t *p = nsqx_extend(out, 30 + size)
    nsqx_store32(p, <uint32_t>(26 + size))
    nsqx_store64(p + 4, <uint64_t>timestamp)
    nsqx_store16(p + 12, 0)
    nsqx_store_id(p + 14, <uint64_t>number)
    memcpy(p + 30, PyBytes_AS_STRING(data) + start, size)
    return 0
