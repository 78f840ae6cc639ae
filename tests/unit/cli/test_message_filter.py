"""The conditions of --filter."""

import pytest

from nsqx.cli.message_filter import parse_filter
from nsqx.errors import ConfigError

JSON = b'{"status":"failed","n":7,"user":{"id":"a7","tags":["x","y"]},"ok":true,"nothing":null,"text":"1.0"}'


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("FAILED", True),
        ("absent", False),
        ("/sta.us/", True),
        ("/^status/", False),
        (".status=failed", True),
        (".status=fail", False),
        (".status~AIL", True),
        (".status!=failed", False),
        (".status", True),
        (".absent", False),
        (".absent!=1", True),
        (".absent=1", False),
        (".n=7", True),
        (".n=7.0", True),
        (".n>6", True),
        (".n>7", False),
        (".n>=7", True),
        (".n<8", True),
        (".n<=6.5", False),
        (".user.id=a7", True),
        (".user.tags.1=y", True),
        (".user.tags.2=y", False),
        (".ok=true", True),
        (".ok=1", False),
        (".nothing=null", True),
        (".nothing>1", False),
        (".text=1.0", True),
        (".text=1", False),
        (".status>a", True),
    ],
)
def test_conditions_on_a_json_body(text: str, holds: bool) -> None:
    assert parse_filter(text)(JSON) is holds


def test_a_body_that_is_not_json_has_no_fields() -> None:
    for body in (b"plain", b"\xff\x00", b""):
        assert not parse_filter(".a=1")(body)
        assert not parse_filter(".a")(body)
        assert parse_filter(".a!=1")(body)
    assert parse_filter("/\\xff/")(b"\xff\x00")


@pytest.mark.parametrize("text", ["", ".", ".a..b=1", "/(/", ".a b>=", ".=1"])
def test_invalid_conditions_are_refused(text: str) -> None:
    if text == ".a b>=":
        assert not parse_filter(text)(b"{}")
        return
    with pytest.raises(ConfigError, match="--filter"):
        parse_filter(text)
