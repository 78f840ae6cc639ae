"""Byte scripts for nsqlookupd's TCP port. Each is sent in one piece after the magic, followed by the end of the stream.

``<topic>`` stands for a topic that only this script uses.
"""

from collections.abc import Iterator

from rawlookup import identify, sized

HELLO = identify()


def identify_with_body(body: bytes) -> bytes:
    return b"IDENTIFY\n" + sized(body)


def fields(*pairs: str) -> bytes:
    """Encode an IDENTIFY with these fields after the required ones."""
    required = '"broadcast_address":"b","tcp_port":1,"http_port":2,"version":"v"'
    return identify_with_body(("{" + ",".join([required, *pairs]) + "}").encode())


LINES = {
    "ping": b"PING\n",
    "ping twice": b"PING\nPING\n",
    "ping with parameters": b"PING a b\n",
    "ping in lower case": b"ping\n",
    "ping with carriage return": b"PING\r\n",
    "ping between ASCII spaces": b" \t PING \v\f\r\n",
    "ping between Unicode spaces": "\u00a0\u2003PING\u3000\u0085\n".encode(),
    "ping after a file separator": b"\x1cPING\n",
    "ping after a zero width space": "\u200bPING\n".encode(),
    "ping without newline": b"PING",
    "ping, then half a line": b"PING\nPIN",
    "empty line": b"\n",
    "carriage return only": b"\r\n",
    "blank line": b"   \n",
    "unknown command": b"NOPE a b\n",
    "command of nsqd": b"FIN 0123456789abcdef\n",
    "not UTF-8": b"\xff\xfe\x80\n",
    "UTF-8": "\u00e9\u00df\n".encode(),
    "zero bytes": b"\0\0\n",
    "tab for a space": b"REGISTER\tx\n",
    "long line": b"x" * 9000 + b"\n",
    "commands after an error": b"NOPE\nPING\nPING\n",
    "register before identify": b"REGISTER <topic>\n",
    "register nothing before identify": b"REGISTER\n",
    "unregister before identify": b"UNREGISTER <topic>\n",
    "nothing": b"",
}

BODIES = {
    "no size": b"IDENTIFY\n",
    "half a size": b"IDENTIFY\n\0\0",
    "no body": b"IDENTIFY\n\0\0\0\5",
    "half a body": b"IDENTIFY\n\0\0\0\5{}",
    "no newline": b"IDENTIFY",
    "parameters after the command": b"IDENTIFY a b\n" + HELLO[9:],
    "good": HELLO,
    "good, then ping": HELLO + b"PING\n",
    "twice": HELLO + HELLO,
    "again without body": HELLO + b"IDENTIFY\n",
    "not JSON": identify_with_body(b"hello"),
    "half JSON": identify_with_body(b'{"version":'),
    "more than JSON": identify_with_body(b"{} {}"),
    "byte order mark": identify_with_body(b"\xef\xbb\xbf{}"),
    "list": identify_with_body(b"[]"),
    "string": identify_with_body(b'"x"'),
    "number": identify_with_body(b"5"),
    "null": identify_with_body(b"null"),
    "object": identify_with_body(b"{}"),
    "space around": identify_with_body(b" \t\r\n" + HELLO[13:] + b" \n"),
    "NaN": fields('"x":NaN'),
    "control character in a string": fields('"x":"\n"'),
    "fields with zero bytes": fields('"hostname":"a\\u0000b"'),
    "integers too big": fields('"tcp_port":9223372036854775808'),
    "biggest integer": fields('"tcp_port":9223372036854775807'),
    "negative port": fields('"tcp_port":-1'),
    "minus zero": fields('"tcp_port":-0'),
    "port with fraction": fields('"tcp_port":1.0'),
    "port with exponent": fields('"tcp_port":1e3'),
    "port as text": fields('"tcp_port":"1"'),
    "port as boolean": fields('"tcp_port":true'),
    "version as number": fields('"version":1'),
    "hostname as number": fields('"hostname":1'),
    "remote_address as number": fields('"remote_address":1'),
    "remote_address as text": fields('"remote_address":"elsewhere"'),
    "null fields": fields('"hostname":null', '"version":null'),
    "last of two wins": fields('"hostname":"a"', '"hostname":"b"'),
    "keys in capitals": identify_with_body(b'{"Broadcast_ADDRESS":"b","TCP_PORT":1,"http_Port":2,"VERSION":"v"}'),
    "unknown keys": fields('"id":5', '"x":[{"y":[null]}]', '"last_update":"z"'),
    "lone surrogate": fields('"hostname":"\\ud800x"'),
    "pair of surrogates": fields('"hostname":"\\ud83d\\ude00"'),
    "characters that Go escapes": fields('"hostname":"<a&b>\\u2028"'),
    "not UTF-8": identify_with_body(HELLO[13:].replace(b"host.test", b"h\xff")),
    **{f"{name} missing": identify(**{name: None}) for name in ("broadcast_address", "tcp_port", "http_port")},
    "version missing": identify(version=None),
    "hostname missing": identify(hostname=None),
    **{f"{name} zero": identify(**{name: 0}) for name in ("tcp_port", "http_port")},
    **{f"{name} empty": identify(**{name: ""}) for name in ("broadcast_address", "version", "hostname")},
    "big body": fields('"x":"' + "y" * 100_000 + '"'),
}

NAMES = {
    "topic": b"<topic>",
    "channel": b"<topic> ch",
    "nothing": b"",
    "space only": b" ",
    "two spaces before the topic": b" <topic>",
    "two spaces before the channel": b"<topic>  ch",
    "extra parameters": b"<topic> ch more words",
    "64 characters": b"<topic64>",
    "65 characters": b"<topic64>x",
    "channel with 64 characters": b"<topic> <topic64>",
    "channel with 65 characters": b"<topic> <topic64>x",
    "ephemeral": b"<topic>#ephemeral <topic>#ephemeral",
    "only the ephemeral suffix": b"#ephemeral",
    "ephemeral suffix twice": b"<topic>#ephemeral#ephemeral",
    "star": b"*",
    "channel star": b"<topic> *",
    "slash": b"a/b",
    "channel slash": b"<topic> a/b",
    "marks": b"<topic>.-_",
    "not UTF-8": b"<topic>\xff",
    "UTF-8": "<topic>\u00e9".encode(),
    "zero byte": b"<topic>\0",
    "carriage return": b"<topic>\r",
    "tab": b"<topic>\tch",
    "bad topic and bad channel": b"/ /",
}


def scripts() -> Iterator[tuple[str, bytes]]:
    for name, line in LINES.items():
        yield name, line
        if line and not line.startswith((b"REGISTER", b"UNREGISTER")):
            yield f"{name} after IDENTIFY", HELLO + line
    for name, command in BODIES.items():
        yield f"IDENTIFY: {name}", command
    for name, words in NAMES.items():
        for command in (b"REGISTER", b"UNREGISTER"):
            line = command + (b" " + words if words else b"") + b"\n"
            yield f"{command.decode()}: {name}", HELLO + line + b"PING\n"
    yield "REGISTER and UNREGISTER", HELLO + b"REGISTER <topic> ch\nUNREGISTER <topic> ch\nUNREGISTER <topic>\nPING\n"


MAGICS = {
    "of nsqd": b"  V2",
    "reversed": b"V1  ",
    "of HTTP": b"GET ",
    "cut short": b"  V",
    "missing": b"",
    "not UTF-8": b"\xff\xfe\x00\n",
}
