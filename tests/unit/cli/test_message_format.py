"""How nsqx sub prints messages."""

import json

import pytest

from nsqx.cli.message_format import json_shower, parse_format, safe_text, show_base64, show_plainly
from nsqx.errors import ConfigError


class FakeMessage:
    """A message that was received."""

    id = b"0123456789abcdef"
    timestamp = 1_700_000_000_123_456_789
    attempts = 2
    nsqd_address = "n:4150"

    def __init__(self, body: bytes) -> None:
        self.body = body


def test_a_template_shows_fields() -> None:
    show = parse_format(r"{topic}\t{id} {attempts} {nsqd} {size} {{{.a.b}}} \\ {body}")
    message = FakeMessage(b'{"a":{"b":"c"}}')
    assert show("t", message) == b't\t0123456789abcdef 2 n:4150 15 {c} \\ {"a":{"b":"c"}}\n'  # type: ignore[arg-type]
    assert parse_format("{time} {timestamp}")("t", message) == (  # type: ignore[arg-type]
        b"2023-11-14T22:13:20.123457Z 1700000000123456789\n"
    )
    assert parse_format("{base64}{.absent}")("t", FakeMessage(b"\xff")) == b"/w==\n"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{bodi}", r"unknown field \{bodi\}; did you mean body\?"),
        ("{x}", r"unknown field \{x\}; use topic, id"),
        ("{", "write {{ for a brace"),
        ("a}", "write {{ for a brace"),
        (r"\q", "after a backslash"),
    ],
)
def test_invalid_templates_are_refused(template: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse_format(template)


@pytest.mark.parametrize("body", [b"\xff\xfe", b"a\xc3", "ä".encode("latin-1")])
def test_binary_bodies_are_never_replaced(body: bytes) -> None:
    message = FakeMessage(body)
    assert show_plainly("t", message) == body + b"\n"  # type: ignore[arg-type]
    document = json.loads(json_shower(is_base64=False)("t", message))  # type: ignore[arg-type]
    assert "body" not in document
    assert document["base64"] + "\n" == show_base64("t", message).decode()  # type: ignore[arg-type]
    assert "\ufffd" not in safe_text(body).decode()


def test_json_shows_text_or_base64() -> None:
    message = FakeMessage("grün".encode())
    assert json.loads(json_shower(is_base64=False)("t", message))["body"] == "grün"  # type: ignore[arg-type]
    assert json.loads(json_shower(is_base64=True)("t", message))["base64"] == "Z3LDvG4="  # type: ignore[arg-type]


def test_text_for_a_terminal_has_no_control_characters() -> None:
    assert safe_text(b"a\n\tb\x1b[31m\xff") == b"a\n\tb\\x1b[31m\\xff"
    assert safe_text("grün".encode()) == "grün".encode()
