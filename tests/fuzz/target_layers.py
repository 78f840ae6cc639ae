"""Compressed streams: what a peer sends under snappy or deflate.

Whatever comes: BadCompression or bytes, about as many as were asked for at a time, the same in whatever pieces; and
for snappy the bytes that a reader written apart from the package gives.
"""

from mutation import in_pieces, speaks

from compression import SnappyLayer
from nsqx.net.compression import BadCompression, Deflate, Snappy
from nsqx.net.layers import Layer, Layers

LIMIT = 4096
# A chunk of snappy is given as a whole.
MOST_AT_ONCE = 65536
MOST_IN_ALL = 1 << 22


def check_deflate(data: bytes) -> None:
    """A deflate stream."""
    whole, pieces = _unwrap(Deflate(), [data]), _unwrap(Deflate(), in_pieces(data))
    _compare(whole, pieces)


def check_snappy(data: bytes) -> None:
    """A snappy stream."""
    whole, pieces = _unwrap(Snappy(), [data]), _unwrap(Snappy(), in_pieces(data))
    _compare(whole, pieces)
    if whole[1]:
        assert SnappyLayer().decode(data)[: len(whole[0])] == whole[0]


def _compare(whole: tuple[bytes, bool], pieces: tuple[bytes, bool]) -> None:
    """What came before a mistake may be given or not, by where the pieces end; the rest must be the same."""
    assert whole[1] == pieces[1]
    if whole[1]:
        assert whole[0] == pieces[0]
    else:
        assert pieces[0].startswith(whole[0]) or whole[0].startswith(pieces[0])


def _unwrap(layer: Layer, pieces: list[bytes]) -> tuple[bytes, bool]:
    """What the stream stands for, and whether it is sound as far as it goes."""
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
        speaks(error)
        return bytes(plain), False
    return bytes(plain), True


def check_round_trip(data: bytes) -> None:
    """Any bytes said through both layers at once come out at the other end."""
    for make in (Deflate, Snappy):
        sender, receiver = Layers(LIMIT), Layers(LIMIT)
        sender.push(make(), b"")
        list(receiver.push(make(), b""))
        said = b"".join([sender.send(piece) for piece in in_pieces(data) if piece])
        assert b"".join([heard for piece in in_pieces(said) for heard in receiver.receive(piece)]) == data
