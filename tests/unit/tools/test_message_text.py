"""Messages as text for a terminal."""

import pytest

from nsqx.tools.message_text import body_line, time_text


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (b"plain", "plain"),
        (b"two\nlines\t.", r"two\nlines\t."),
        (b"\x1b[31m\x00", r"\x1b[31m\x00"),
        (b"\xff\xfe", r"\xff\xfe"),
        ("Gr\u00fc\u00dfe".encode(), "Gr\u00fc\u00dfe"),
        ("\u202eevil".encode(), r"\u202eevil"),
    ],
)
def test_a_body_is_one_line_without_control_characters(body, line):
    assert body_line(body) == line


def test_a_time_is_in_utc():
    assert time_text(1_794_981_600_123_456_789) == "2026-11-18T06:00:00.123457Z"
