"""Compression bombs: whatever a client compresses, nsqd's memory stays bounded."""

import functools
import ssl
import struct
import zlib
from collections.abc import Callable

import cramjam
import pytest

from certificates import Authority
from compression import DeflateLayer, Layer, SnappyLayer
from daemons import Daemon, Fleet
from rawclient import OK, RawClient, identify, mpub

MIB = 1024 * 1024
BOMB_MIB = 64
MOST_GROWTH_MIB = 24
SNAPPY_IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
LAYERS: dict[str, Callable[[], Layer]] = {"deflate": DeflateLayer, "snappy": SnappyLayer}


@functools.cache
def deflated(start: bytes, filling: bytes) -> bytes:
    """Compress ``start`` followed by a large amount of ``filling``."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    block = filling * (MIB // len(filling))
    pieces = [compressor.compress(start), *(compressor.compress(block) for _ in range(BOMB_MIB))]
    return b"".join(pieces) + compressor.flush(zlib.Z_SYNC_FLUSH)


def snappy_chunk(kind: int, data: bytes) -> bytes:
    return bytes([kind]) + len(data).to_bytes(3, "little") + data


def snappy_claiming(size: int) -> bytes:
    """Return a compressed chunk that claims to decode to ``size`` bytes."""
    claim = bytearray()
    while size >= 0x80:
        claim.append(size & 0x7F | 0x80)
        size >>= 7
    claim.append(size)
    return SNAPPY_IDENTIFIER + snappy_chunk(0, b"crc!" + bytes(claim) + b"\xfc" * 100)


BOMBS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "a line without end": ("deflate", lambda: deflated(b"", b"A")),
    "a huge message": ("deflate", lambda: deflated(b"PUB t\n" + struct.pack(">i", BOMB_MIB * MIB), b"A")),
    "a huge batch": ("deflate", lambda: deflated(b"MPUB t\n" + struct.pack(">i", BOMB_MIB * MIB), b"\0")),
    "a batch of very many empty messages": (
        "deflate",
        lambda: deflated(b"MPUB t\n" + struct.pack(">ii", 5 * MIB, 2**30), b"\0"),
    ),
    "a huge IDENTIFY": ("deflate", lambda: deflated(b"IDENTIFY\n" + struct.pack(">i", BOMB_MIB * MIB), b"[")),
    "a snappy line without end": ("snappy", lambda: bytes(cramjam.snappy.compress(b"A" * BOMB_MIB * MIB))),
    "a chunk that claims 4 GiB": ("snappy", lambda: snappy_claiming(2**32 - 1)),
    "a chunk that claims one byte too many": ("snappy", lambda: snappy_claiming(65537)),
    "a chunk of a MiB in disguise": (
        "snappy",
        lambda: SNAPPY_IDENTIFIER + snappy_chunk(0, b"crc!" + bytes(cramjam.snappy.compress_raw(bytes(MIB)))),
    ),
    "a chunk to be skipped, of 16 MiB": ("snappy", lambda: SNAPPY_IDENTIFIER + snappy_chunk(0x80, bytes(16 * MIB - 1))),
}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def nsqd(authority: Authority):
    certificate = authority.sign("server")
    fleet = Fleet()
    daemon = fleet.nsqd("nsqx", f"--tls-cert={certificate.cert}", f"--tls-key={certificate.key}")
    with compressed_client(daemon, authority, "deflate", tls=True) as client:
        assert client.pub("warm", b"x") == OK
    yield daemon
    fleet.close()


def compressed_client(nsqd: Daemon, authority: Authority, kind: str, *, tls: bool) -> RawClient:
    client = RawClient(nsqd.tcp_address)
    client.send(identify(feature_negotiation=True, tls_v1=tls, **{kind: True}))
    client.read_frame()
    if tls:
        client.start_tls(ssl.create_default_context(cafile=authority.cert))
        assert client.read_frame() == OK
    client.start_compression(LAYERS[kind]())
    assert client.read_frame() == OK
    return client


def resident_mib(nsqd: Daemon) -> int:
    with open(f"/proc/{nsqd.pid}/status") as status:
        return int(next(line for line in status if line.startswith("VmRSS:")).split()[1]) // 1024


def peak_mib(nsqd: Daemon) -> int:
    """Return nsqd's peak memory since ``forget_peak``."""
    with open(f"/proc/{nsqd.pid}/status") as status:
        return int(next(line for line in status if line.startswith("VmHWM:")).split()[1]) // 1024


def forget_peak(nsqd: Daemon) -> None:
    with open(f"/proc/{nsqd.pid}/clear_refs", "w") as switch:
        switch.write("5")


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "in TLS"])
@pytest.mark.parametrize("name", BOMBS)
def test_a_compression_bomb_is_rejected_in_bounded_memory(
    nsqd: Daemon, authority: Authority, name: str, tls: bool
) -> None:
    """A bomb is rejected with an error frame or by closing, and nsqd allocates no memory for its content."""
    kind, make = BOMBS[name]
    bomb = make()
    forget_peak(nsqd)
    before_mib = resident_mib(nsqd)
    with compressed_client(nsqd, authority, kind, tls=tls) as client:
        client.send_unlayered(bomb)
        try:
            frames = client.read_until_closed()
        except ssl.SSLError:
            frames = []
    assert all(frame.data.startswith(b"E_") for frame in frames)
    assert peak_mib(nsqd) - before_mib < MOST_GROWTH_MIB
    with compressed_client(nsqd, authority, kind, tls=tls) as other:
        assert other.pub("t#ephemeral", b"x") == OK
    assert "Traceback" not in nsqd.log


@pytest.mark.parametrize("kind", LAYERS)
def test_many_small_commands_are_executed_in_bounded_memory(nsqd: Daemon, authority: Authority, kind: str) -> None:
    """A very large number of small commands is executed in small steps, in little memory."""
    nops = b"NOP\n" * (MIB // 8)
    forget_peak(nsqd)
    before_mib = resident_mib(nsqd)
    with compressed_client(nsqd, authority, kind, tls=False) as client:
        for _ in range(4):
            client.send(nops)
        assert client.pub("t#ephemeral", b"x") == OK
    assert peak_mib(nsqd) - before_mib < MOST_GROWTH_MIB


@pytest.mark.parametrize("kind", LAYERS)
def test_batches_within_the_limit_are_accepted(nsqd: Daemon, authority: Authority, kind: str) -> None:
    with compressed_client(nsqd, authority, kind, tls=True) as client:
        assert client.mpub("t#ephemeral", [b"\0" * MIB]) == OK
        client.send(mpub("t#ephemeral", [b"\0" * (MIB + 1)]))
        assert client.read_frame().data.startswith(b"E_BAD_MESSAGE MPUB message too big")
