"""Deflate and snappy as layers: any split decodes to the original, and output is bounded."""

import struct
import zlib

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compression import DeflateLayer, SnappyLayer
from nsqx.net.compression import BadCompression, Deflate
from nsqx.net.snappy import Snappy

LAYERS = pytest.mark.parametrize("layer_type", [Deflate, Snappy])
LIMIT = 256 * 1024


def unwrap_all(layer, data, limit=LIMIT):
    pieces = [layer.unwrap(data, limit)]
    while layer.has_more:
        pieces.append(layer.unwrap(b"", limit))
    return b"".join(pieces)


@LAYERS
@given(writes=st.lists(st.binary(max_size=300), max_size=6), data=st.data())
def test_any_split_of_the_input_decodes_the_same(layer_type, writes, data):
    sender, receiver = layer_type(), layer_type()
    wire = b"".join(sender.wrap(write) for write in writes if write)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=6)))
    found = b""
    for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        found += unwrap_all(receiver, wire[start:end])
    assert found == b"".join(writes)


@LAYERS
def test_every_write_can_be_decoded_at_once(layer_type):
    sender, receiver = layer_type(), layer_type()
    for number in range(50):
        write = b"write %d" % number
        assert unwrap_all(receiver, sender.wrap(write)) == write


@LAYERS
def test_large_writes_are_decoded(layer_type):
    body = bytes(range(256)) * 4000
    sender, receiver = layer_type(), layer_type()
    assert unwrap_all(receiver, sender.wrap(body)) == body
    assert unwrap_all(receiver, sender.wrap(body)) == body


@LAYERS
def test_output_comes_in_bounded_pieces(layer_type):
    """Megabytes of zeros compress to few bytes; no decoded piece is larger than the limit."""
    sender, receiver = layer_type(), layer_type()
    block = bytes(1024 * 1024)
    wire = b"".join(sender.wrap(block) for _ in range(20))
    size = 0
    piece = receiver.unwrap(wire, LIMIT)
    while piece or receiver.has_more:
        assert len(piece) <= LIMIT
        size += len(piece)
        piece = receiver.unwrap(b"", LIMIT) if receiver.has_more else b""
    assert size == 20 * len(block)


@LAYERS
def test_compressions_send_no_data_of_their_own(layer_type):
    assert layer_type().take_output() == b""


@pytest.mark.parametrize(("ours", "plain"), [(Deflate, DeflateLayer), (Snappy, SnappyLayer)])
def test_another_implementation_agrees(ours, plain):
    body = b"to and fro " * 20_000
    assert unwrap_all(ours(), plain().encode(body)) == body
    assert plain().decode(ours().wrap(body)) == body


def test_deflate_is_raw():
    assert zlib.decompressobj(-15).decompress(Deflate(9).wrap(b"hello")) == b"hello"


def test_snappy_begins_with_its_identifier_once():
    snappy = Snappy()
    assert snappy.wrap(b"a").startswith(b"\xff\x06\x00\x00sNaPpY")
    assert not snappy.wrap(b"b").startswith(b"\xff")


def test_snappy_skips_padding_and_reserved_chunks():
    wire = Snappy().wrap(b"hello")
    head = wire[:10]
    assert unwrap_all(Snappy(), head + b"\xfe\x03\x00\x00abc" + b"\x80\x01\x00\x00x" + head + wire[10:]) == b"hello"


def chunk(kind, data):
    return bytes([kind]) + len(data).to_bytes(3, "little") + data


def test_a_snappy_bomb_is_rejected():
    """A compressed chunk must not claim to decode to more than 65536 bytes."""
    bomb = bytes(cramjam.snappy.compress_raw(bytes(1024 * 1024)))
    with pytest.raises(BadCompression, match="decodes to 1048576 bytes, at most 65536"):
        Snappy().unwrap(b"\xff\x06\x00\x00sNaPpY" + chunk(0, b"crc!" + bomb), LIMIT)


@pytest.mark.parametrize(
    ("wire", "text"),
    [
        (chunk(1, b"crc!data"), "does not begin with its identifier"),
        (b"\xff\x06\x00\x00sNaPpY" + chunk(2, b"data"), "unknown chunk type 0x02"),
        (b"\xff\x06\x00\x00sNaPpY" + chunk(0x7F, b"data"), "unknown chunk type 0x7f"),
        (b"\xff\x06\x00\x00sNaPpY" + chunk(1, b"abc"), "invalid chunk length 3"),
        (b"\xff\x06\x00\x00sNaPpY" + b"\x01\xff\xff\xff", "invalid chunk length 16777215"),
        (b"\xff\x06\x00\x00sNaPpY" + chunk(1, struct.pack("<I", 1) + b"data"), "snappy:"),
        (b"\xff\x06\x00\x00SnApPy", "snappy:"),
        (b"\xff\x05\x00\x00sNaPp", "invalid stream identifier"),
    ],
)
def test_invalid_snappy_is_rejected(wire, text):
    with pytest.raises(BadCompression, match=text):
        Snappy().unwrap(wire, LIMIT)


def test_invalid_deflate_is_rejected():
    with pytest.raises(BadCompression, match="deflate: "):
        Deflate().unwrap(b"\x07nonsense", LIMIT)


def test_data_after_the_end_of_deflate_is_rejected():
    ended = zlib.compressobj(6, zlib.DEFLATED, -15)
    wire = ended.compress(b"x") + ended.flush()
    with pytest.raises(BadCompression, match="after the end"):
        Deflate().unwrap(wire + b"more", LIMIT)
    layer = Deflate()
    assert layer.unwrap(wire, LIMIT) == b"x"
    assert layer.unwrap(b"", LIMIT) == b""
    with pytest.raises(BadCompression, match="after the end"):
        layer.unwrap(b"more", LIMIT)
