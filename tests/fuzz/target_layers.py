"""Compressed streams: snappy and deflate.

Any input gives BadCompression or bytes. At most about the requested number of bytes is returned at a time, and the
result is the same in all divisions into pieces. Snappy is also compared with a decoder that shares no code with the
package.
"""

from mutation import assert_one_line, in_pieces

from compression import SnappyLayer
from nsqx.net.compression import BadCompression, Deflate
from nsqx.net.layers import Layer, Layers
from nsqx.net.snappy import Snappy

LIMIT = 4096
# A chunk of snappy is returned as a whole.
MOST_AT_ONCE = 65536
MOST_IN_ALL = 1 << 22


def check_deflate(data: bytes) -> None:
    """Check a deflate stream."""
    whole, pieces = _unwrap(Deflate(), [data]), _unwrap(Deflate(), in_pieces(data))
    _compare(whole, pieces)


def check_snappy(data: bytes) -> None:
    """Check a snappy stream."""
    whole, pieces = _unwrap(Snappy(), [data]), _unwrap(Snappy(), in_pieces(data))
    _compare(whole, pieces)
    if whole[1]:
        assert SnappyLayer().decode(data)[: len(whole[0])] == whole[0]


def _compare(whole: tuple[bytes, bool], pieces: tuple[bytes, bool]) -> None:
    """Compare two results; of an invalid stream one may have more bytes before the error than the other."""
    assert whole[1] == pieces[1]
    if whole[1]:
        assert whole[0] == pieces[0]
    else:
        assert pieces[0].startswith(whole[0]) or whole[0].startswith(pieces[0])


def _unwrap(layer: Layer, pieces: list[bytes]) -> tuple[bytes, bool]:
    """Return the decompressed bytes, and whether the stream is valid so far."""
    layers = Layers(LIMIT)
    plain = bytearray()
    try:
        for piece in layers.push(layer, b""):
            plain += piece
        for received in pieces:
            for piece in layers.receive(received):
                assert len(piece) <= MOST_AT_ONCE
                plain += piece
                if len(plain) > MOST_IN_ALL:
                    return bytes(plain[:MOST_IN_ALL]), True
    except BadCompression as error:
        assert_one_line(error)
        return bytes(plain), False
    return bytes(plain), True


def check_round_trip(data: bytes) -> None:
    """Check that any bytes are equal after compression and decompression."""
    for make in (Deflate, Snappy):
        sender, receiver = Layers(LIMIT), Layers(LIMIT)
        sender.push(make(), b"")
        list(receiver.push(make(), b""))
        sent = b"".join([sender.send(piece) for piece in in_pieces(data) if piece])
        assert b"".join([received for piece in in_pieces(sent) for received in receiver.receive(piece)]) == data
