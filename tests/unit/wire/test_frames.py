"""Frames to clients, byte for byte."""

import pytest

from nsqx.wire import frames


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (frames.OK, b"\x00\x00\x00\x06\x00\x00\x00\x00OK"),
        (frames.HEARTBEAT, b"\x00\x00\x00\x0f\x00\x00\x00\x00_heartbeat_"),
        (frames.CLOSE_WAIT, b"\x00\x00\x00\x0e\x00\x00\x00\x00CLOSE_WAIT"),
        (frames.encode_frame(frames.ERROR, b"E_INVALID"), b"\x00\x00\x00\x0d\x00\x00\x00\x01E_INVALID"),
        (frames.encode_frame(frames.MESSAGE, b""), b"\x00\x00\x00\x04\x00\x00\x00\x02"),
    ],
)
def test_the_bytes_of_a_frame(frame, expected):
    assert frame == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight", b"0123456789abcdef"),
        ("E_REQ_FAILED REQ 0123456789abcdef failed ID not in flight", b""),
        ("E_FIN_FAILED", b""),
        ("E_INVALID", b""),
        ("", b""),
    ],
)
def test_a_failed_fin_names_its_message(text, expected):
    assert frames.failed_finish_id(text) == expected
