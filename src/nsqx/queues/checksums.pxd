# The compiled half of checksums.py: same names, same meaning, no bounds checks.

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    static uint32_t nsqx_crc_tables[8][256];

    static inline uint32_t nsqx_crc_swap(uint32_t v) { return __builtin_bswap32(v); }

    /* Eight bytes per step, with tables. */
    static inline uint32_t nsqx_crc_step(uint32_t crc, const uint8_t *p, size_t size) {
        for (; size >= 8; size -= 8, p += 8) {
            uint64_t w;
            memcpy(&w, p, 8);
            w ^= crc;
            crc = nsqx_crc_tables[7][w & 255] ^ nsqx_crc_tables[6][(w >> 8) & 255]
                ^ nsqx_crc_tables[5][(w >> 16) & 255] ^ nsqx_crc_tables[4][(w >> 24) & 255]
                ^ nsqx_crc_tables[3][(w >> 32) & 255] ^ nsqx_crc_tables[2][(w >> 40) & 255]
                ^ nsqx_crc_tables[1][(w >> 48) & 255] ^ nsqx_crc_tables[0][w >> 56];
        }
        while (size--) crc = nsqx_crc_tables[0][(crc ^ *p++) & 255] ^ (crc >> 8);
        return crc;
    }

    #if defined(__x86_64__) && defined(__GNUC__)
    #include <immintrin.h>
    #define NSQX_CARRYLESS __attribute__((target("pclmul,avx")))
    #define NSQX_LOAD(p) _mm_loadu_si128((const __m128i *)(p))

    static int nsqx_crc_can_fold;

    /* From the index n on: a shuffle that moves the first n bytes to the end and fills the others with zeros. */
    static const int8_t nsqx_crc_shift[32] = {
        -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    };

    /* Multiply x by the power of the polynomial's variable that k encodes, and add the next 128 bits. */
    NSQX_CARRYLESS static inline __m128i nsqx_crc_onto(__m128i x, __m128i k, __m128i next) {
        __m128i low = _mm_clmulepi64_si128(x, k, 0x00), high = _mm_clmulepi64_si128(x, k, 0x11);
        return _mm_xor_si128(_mm_xor_si128(low, high), next);
    }

    /* Carry-less multiplication; size is 16 or more. Zeros before the first byte do not change the remainder, so they
       fill the first block if size is not a multiple of 16. The constants are powers of x modulo the polynomial, bits
       reversed: x^544 and x^480, x^160 and x^96, x^64; then the polynomial and x^64 divided by it. */
    NSQX_CARRYLESS static uint32_t nsqx_crc_fold(uint32_t crc, const uint8_t *p, size_t size) {
        const __m128i by_64 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
        const __m128i by_16 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
        const __m128i to_64_bits = _mm_set_epi64x(0, 0x0163cd6124);
        const __m128i division = _mm_set_epi64x(0x01f7011641, 0x01db710641);
        const __m128i low_halves = _mm_set_epi32(0, ~0, 0, ~0);
        const size_t odd = size & 15;
        const __m128i start = _mm_xor_si128(NSQX_LOAD(p), _mm_cvtsi32_si128((int)crc));
        const __m128i first = _mm_shuffle_epi8(start, NSQX_LOAD(nsqx_crc_shift + odd));
        __m128i x = _mm_xor_si128(NSQX_LOAD(p + odd), _mm_cvtsi32_si128(odd < 4 ? (int)(crc >> 8 * odd) : 0));
        __m128i quotient;
        x = nsqx_crc_onto(first, by_16, x);
        p += odd;
        size -= odd;
        if (size >= 64) {
            __m128i x1 = NSQX_LOAD(p + 16), x2 = NSQX_LOAD(p + 32), x3 = NSQX_LOAD(p + 48);
            for (p += 64, size -= 64; size >= 64; p += 64, size -= 64) {
                x = nsqx_crc_onto(x, by_64, NSQX_LOAD(p));
                x1 = nsqx_crc_onto(x1, by_64, NSQX_LOAD(p + 16));
                x2 = nsqx_crc_onto(x2, by_64, NSQX_LOAD(p + 32));
                x3 = nsqx_crc_onto(x3, by_64, NSQX_LOAD(p + 48));
            }
            x = nsqx_crc_onto(nsqx_crc_onto(nsqx_crc_onto(x, by_16, x1), by_16, x2), by_16, x3);
        } else {
            p += 16;
            size -= 16;
        }
        for (; size; p += 16, size -= 16) x = nsqx_crc_onto(x, by_16, NSQX_LOAD(p));
        x = _mm_xor_si128(_mm_srli_si128(x, 8), _mm_clmulepi64_si128(x, by_16, 0x10));
        x = _mm_xor_si128(_mm_srli_si128(x, 4), _mm_clmulepi64_si128(_mm_and_si128(x, low_halves), to_64_bits, 0x00));
        quotient = _mm_clmulepi64_si128(_mm_and_si128(x, low_halves), division, 0x10);
        quotient = _mm_clmulepi64_si128(_mm_and_si128(quotient, low_halves), division, 0x00);
        return (uint32_t)_mm_extract_epi32(_mm_xor_si128(x, quotient), 1);
    }
    #endif

    __attribute__((constructor)) static void nsqx_crc_prepare(void) {
        for (uint32_t n = 0; n < 256; n++) {
            uint32_t crc = n;
            for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? 0xEDB88320u ^ (crc >> 1) : crc >> 1;
            nsqx_crc_tables[0][n] = crc;
        }
        for (int t = 1; t < 8; t++)
            for (int n = 0; n < 256; n++) {
                uint32_t crc = nsqx_crc_tables[t - 1][n];
                nsqx_crc_tables[t][n] = nsqx_crc_tables[0][crc & 255] ^ (crc >> 8);
            }
    #ifdef NSQX_CARRYLESS
        __builtin_cpu_init();
        nsqx_crc_can_fold = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("avx");
    #endif
    }

    static inline uint32_t nsqx_crc_from(uint32_t seed, const uint8_t *p, size_t size) {
        uint32_t crc = ~seed;
    #ifdef NSQX_CARRYLESS
        if (nsqx_crc_can_fold && size >= 16) return ~nsqx_crc_fold(crc, p, size);
    #endif
        return ~nsqx_crc_step(crc, p, size);
    }

    static inline uint32_t nsqx_crc(const uint8_t *p, size_t size) { return nsqx_crc_from(0, p, size); }

    static inline uint32_t nsqx_crc_load(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return nsqx_crc_swap(v); }
    static inline void nsqx_crc_store(uint8_t *p, uint32_t v) { v = nsqx_crc_swap(v); memcpy(p, &v, 4); }

    """
    uint32_t nsqx_crc(const uint8_t *p, size_t size)
    uint32_t nsqx_crc_from(uint32_t seed, const uint8_t *p, size_t size)
    uint32_t nsqx_crc_load(const uint8_t *p)
    void nsqx_crc_store(uint8_t *p, uint32_t v)


cdef inline int append_sums(bytearray out, bytearray records, Py_ssize_t count) except -1:
    cdef const uint8_t *p = <const uint8_t *>PyByteArray_AS_STRING(records)
    cdef Py_ssize_t used = PyByteArray_GET_SIZE(out)
    cdef uint8_t *entry
    cdef uint32_t size
    cdef Py_ssize_t index
    PyByteArray_Resize(out, used + 8 * count)
    entry = <uint8_t *>PyByteArray_AS_STRING(out) + used
    for index in range(count):
        size = 4 + nsqx_crc_load(p)
        nsqx_crc_store(entry, size)
        nsqx_crc_store(entry + 4, nsqx_crc(p, size))
        entry += 8
        p += size
    return 0


cdef inline Py_ssize_t count_good(bytes data, Py_ssize_t start, bytes sums, Py_ssize_t first, Py_ssize_t last):
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(data) + start
    cdef const uint8_t *entry = <const uint8_t *>PyBytes_AS_STRING(sums) + 8 * first
    cdef Py_ssize_t left = len(data) - start
    cdef Py_ssize_t index
    cdef uint32_t size
    for index in range(first, last):
        size = nsqx_crc_load(entry)
        if <Py_ssize_t>size > left or nsqx_crc(p, size) != nsqx_crc_load(entry + 4):
            return index - first
        entry += 8
        p += size
        left -= size
    return last - first


cdef inline Py_ssize_t span(bytes sums, Py_ssize_t first, Py_ssize_t last):
    cdef const uint8_t *entry = <const uint8_t *>PyBytes_AS_STRING(sums) + 8 * first
    cdef Py_ssize_t total = 0
    cdef Py_ssize_t index
    for index in range(first, last):
        total += nsqx_crc_load(entry)
        entry += 8
    return total


cdef inline uint32_t crc_of(bytes data, uint32_t seed):
    return nsqx_crc_from(seed, <const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef inline bytes item_sums(bytes items, Py_ssize_t count):
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(items)
    cdef bytes sums = PyBytes_FromStringAndSize(NULL, 4 * count)
    cdef uint8_t *entry = <uint8_t *>PyBytes_AS_STRING(sums)
    cdef Py_ssize_t index
    cdef uint32_t size
    for index in range(count):
        size = 4 + nsqx_crc_load(p)
        nsqx_crc_store(entry, nsqx_crc(p, size))
        entry += 4
        p += size
    return sums


cdef inline bint are_items_good(bytes items, bytes sums):
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(items)
    cdef const uint8_t *entry = <const uint8_t *>PyBytes_AS_STRING(sums)
    cdef Py_ssize_t left = PyBytes_GET_SIZE(items)
    cdef Py_ssize_t index
    cdef uint32_t size
    for index in range(PyBytes_GET_SIZE(sums) // 4):
        if left < 4:
            return False
        size = nsqx_crc_load(p)
        if size > 0x7FFFFFFF or <Py_ssize_t>size > left - 4 or nsqx_crc(p, 4 + size) != nsqx_crc_load(entry):
            return False
        entry += 4
        p += 4 + size
        left -= 4 + size
    return left == 0
