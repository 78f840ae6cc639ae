# The compiled half of heads.py: same name, same meaning.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from nsqx.queues.checksums cimport nsqx_crc_from
from nsqx.wire.byteops cimport nsqx_store16, nsqx_store32, nsqx_store64


cdef inline bytes encode_head(
    uint32_t size, int64_t first, int64_t timestamp, uint32_t count, uint16_t kind, uint16_t extension_size,
    uint32_t items_size, int64_t synced_below, uint32_t tail_crc, uint32_t seed, uint32_t unsynced
):
    cdef bytes head = PyBytes_FromStringAndSize(NULL, 56)
    cdef uint32_t crc
    cdef uint8_t *p = <uint8_t *>PyBytes_AS_STRING(head)
    memcpy(p, <const char *>b"NXB1", 4)
    nsqx_store32(p + 4, size)
    nsqx_store64(p + 8, <uint64_t>first)
    nsqx_store64(p + 16, <uint64_t>timestamp)
    nsqx_store32(p + 24, count)
    nsqx_store16(p + 28, kind)
    nsqx_store16(p + 30, extension_size)
    nsqx_store32(p + 32, items_size)
    nsqx_store64(p + 36, <uint64_t>synced_below)
    nsqx_store32(p + 44, tail_crc)
    nsqx_store32(p + 52, unsynced)
    crc = nsqx_crc_from(seed, p, 48)
    if unsynced:
        crc = nsqx_crc_from(crc, p + 52, 4)
    nsqx_store32(p + 48, crc)
    return head
