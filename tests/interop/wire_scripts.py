"""The byte scripts that are sent to Go's nsqd and to ours. wirescript.py plays them."""

import json
from collections.abc import Iterable, Iterator
from struct import pack

from wirescript import (
    Script,
    Step,
    channel_shows,
    deflate,
    disconnect,
    expect,
    expect_heartbeat,
    expect_unordered,
    garbage,
    gone,
    half_close,
    note_channel,
    on,
    one_byte_at_a_time,
    post,
    quiet,
    snappy,
    tls,
)

from rawclient import auth, dpub, fin, identify, mpub, mpub_body, nop, pub, rdy, req, sized, sub, touch

# The flags of each profile. With "timed" and "scanned", nsqd starts with the topic of every script and its channel
# "ch", because Go's nsqd checks a channel that is created later for timed-out messages only after some seconds.
PROFILES: dict[str, list[str]] = {
    "default": [],
    "small": [
        "--max-msg-size=1024",
        "--max-body-size=4096",
        "--max-rdy-count=100",
        "--max-req-timeout=10s",
        "--msg-timeout=5s",
        "--max-msg-timeout=10s",
        "--max-heartbeat-interval=20s",
        "--max-output-buffer-size=4096",
        "--max-output-buffer-timeout=5s",
        "--min-output-buffer-timeout=100ms",
        "--max-channel-consumers=2",
        "--max-deflate-level=3",
    ],
    "plain": ["--deflate=false", "--snappy=false"],
    "disk": ["--mem-queue-size=0"],
    "scanned": [],
    "timed": ["--msg-timeout=1s", "--max-msg-timeout=2s", "--max-req-timeout=10s", "--output-buffer-timeout=25ms"],
    "tls": [],
    "tls-required": ["--tls-required=tcp-https"],
    "auth": [],
}

TOPIC = "<topic>"
UNKNOWN_ID = b"0123456789abcdef"
HELLO = pub(TOPIC, b"hello")
SUBSCRIBE = sub(TOPIC, "ch")
SUBSCRIBED: list[Step] = [SUBSCRIBE, expect(1)]
CLOSING: list[Step] = [SUBSCRIBE, b"CLS\n", expect(2)]
HOLDING: list[Step] = [HELLO, SUBSCRIBE, rdy(1), expect(3)]
# Publish four messages of different sizes, then receive and finish them.
WORK: list[Step] = [
    HELLO,
    mpub(TOPIC, [b"a" * 300, b"b" * 70000, bytes(range(256)) * 20]),
    SUBSCRIBE,
    rdy(1),
    expect(4),
    *[fin(b"<id>"), expect(1)] * 3,
]
IDENTIFY_JSON = b"IDENTIFY\n"
BIG_INTEGERS = [
    2**31 - 1,
    2**31,
    2**32,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**64,
    2**64 + 7000,
    10**30,
    9223372036855,
    9223372036861776,
]


def magic_scripts() -> Iterator[Script]:
    for name, magic in {
        "v1": b"  V1",
        "lower case": b"  v2",
        "no spaces": b"V2  ",
        "http": b"GET / HTTP/1.1\r\n\r\n",
        "zeros": b"\0\0\0\0",
        "newline": b"\n\n\n\n",
    }.items():
        yield Script(f"magic: {name}", [], magic=magic, ending="closes")
    yield Script("magic: three bytes, then end of stream", [], magic=b"  V", ending="eof")
    yield Script("magic: none, then end of stream", [], magic=b"", ending="eof")
    yield Script("magic: twice", [], magic=b"  V2  V2\n")
    yield Script("magic: one byte at a time", [one_byte_at_a_time(b"  V2NOP\n" + HELLO)], magic=b"")
    yield Script("magic: together with commands", [], magic=b"  V2" + HELLO + HELLO)
    yield Script("magic: correct, then end of stream", [], ending="eof")


def line_scripts() -> Iterator[Script]:
    lines = {
        "empty": b"\n",
        "only CR": b"\r\n",
        "two CR": b"\r\r\n",
        "space": b" \n",
        "space before the command": b" NOP\n",
        "lower case": b"nop\n",
        "space after the command": b"NOP \n",
        "parameters after the command": b"NOP a b c\n",
        "CR before the newline": b"NOP\r\n",
        "two CR before the newline": b"NOP\r\r\n",
        "CR inside": b"N\rOP\n",
        "tab as separator": b"SUB\ttopic\tch\n",
        "unknown": b"PING\n",
        "unknown with parameters": b"PEEK a b\n",
        "unknown bytes": b"\xff\xfe\x00\x01\n",
        "unknown UTF-8": "été\n".encode(),
        "unknown with quotes": b'"NOP"\n',
        "prefix of a command": b"FI\n",
        "command with a suffix": b"NOPE\n",
        "VERSION": b"VERSION\n",
        "no newline": b"NOP",
    }
    for name, line in lines.items():
        yield Script(f"line: {name}", [line], ending="eof" if name == "no newline" else "fence")
    for length in (16382, 16383, 16384, 16385, 40000):
        filler = b"NOP ".ljust(length, b"x")
        yield Script(f"line: {length} characters", [filler + b"\n"])
        yield Script(f"line: {length} characters of an unknown command", [b"X" * length + b"\n"])
        yield Script(f"line: {length} characters, then end of stream", [b"X" * length], ending="eof")
    yield Script("line: 16384 characters, CR included", [b"NOP ".ljust(16382, b"x") + b"\r\n"])
    yield Script("line: too long after good commands", [HELLO + b"NOP ".ljust(20000, b"x") + b"\n", expect(1)])
    yield Script("line: too long without a newline", [b"X" * 16384], ending="closes")
    yield Script("line: pipelined", [HELLO * 50 + nop() * 50 + HELLO * 50])
    yield Script("line: one byte at a time", [one_byte_at_a_time(b"NOP\r\nNOP\n" + HELLO + mpub(TOPIC, [b"a", b"b"]))])
    yield Script("line: commands after a fatal error are ignored", [HELLO + b"WRONG\n" + HELLO * 20])


def state_scripts() -> Iterator[Script]:
    """Every command, complete and without parameters, in every state of a connection."""
    states: dict[str, list[Step]] = {
        "new connection": [],
        "identified": [identify(client_id="x"), expect(1)],
        "subscribed": SUBSCRIBED,
        "closing": CLOSING,
    }
    commands = {
        "IDENTIFY": identify(),
        "AUTH": auth(b"secret"),
        "AUTH with a parameter": b"AUTH word\n",
        "SUB": SUBSCRIBE,
        "SUB another": sub("<topic>.other", "ch"),
        "SUB without parameters": b"SUB\n",
        "SUB without channel": b"SUB <topic>\n",
        "SUB with an extra parameter": b"SUB <topic> ch more\n",
        "RDY": rdy(1),
        "RDY without parameters": b"RDY\n",
        "FIN": fin(UNKNOWN_ID),
        "FIN without parameters": b"FIN\n",
        "REQ": req(UNKNOWN_ID, 0),
        "REQ without parameters": b"REQ\n",
        "REQ without timeout": b"REQ 0123456789abcdef\n",
        "TOUCH": touch(UNKNOWN_ID),
        "TOUCH without parameters": b"TOUCH\n",
        "CLS": b"CLS\n",
        "CLS with parameters": b"CLS a b\n",
        "NOP": nop(),
        "PUB": HELLO,
        "PUB without parameters": b"PUB\n",
        "PUB with an extra parameter": b"PUB <topic> more\n" + sized(b"hello"),
        "MPUB": mpub(TOPIC, [b"one", b"two"]),
        "MPUB without parameters": b"MPUB\n",
        "MPUB with an extra parameter": b"MPUB <topic> more\n" + sized(mpub_body([b"one"])),
        "DPUB": dpub(TOPIC, 5000, b"later"),
        "DPUB without parameters": b"DPUB\n",
        "DPUB without time": b"DPUB <topic>\n",
        "DPUB with an extra parameter": b"DPUB <topic> 5000 more\n" + sized(b"later"),
        "an unknown command": b"WHAT\n",
    }
    for state, steps in states.items():
        for command, data in commands.items():
            yield Script(f"{state}: {command}", [*steps, data])


def name_scripts() -> Iterator[Script]:
    names: dict[str, bytes] = {
        "64 characters": b"<topic64>",
        "65 characters": b"<topic64>x",
        "every valid punctuation character": b"<topic>.-_09azAZ",
        "only punctuation": b"._-",
        "empty": b"",
        "ephemeral": b"<topic>#ephemeral",
        "64 characters and ephemeral": b"<topic64>#ephemeral",
        "54 characters and ephemeral": b"x" * 54 + b"#ephemeral",
        "55 characters and ephemeral": b"x" * 55 + b"#ephemeral",
        "only the suffix": b"#ephemeral",
        "suffix twice": b"a#ephemeral#ephemeral",
        "suffix in capitals": b"a#EPHEMERAL",
        "half a suffix": b"a#ephem",
        "hash": b"a#",
        "slash": b"a/b",
        "colon": b"a:b",
        "quote": b'a"b',
        "backslash": b"a\\b",
        "single quote": b"a'b",
        "control characters": b"a\x00\x01\x07\x08\x0b\x0c\x1b\x7fb",
        "tab": b"a\tb",
        "CR": b"a\rb",
        "accents": "été".encode(),
        "line separator": "a\u2028b".encode(),
        "no-break space": "a\u00a0b".encode(),
        "zero width space": "a\u200bb".encode(),
        "byte order mark": "\ufeffa".encode(),
        "combining mark": "e\u0301".encode(),
        "soft hyphen": "a\u00adb".encode(),
        "private use": "\ue000".encode(),
        "emoji": "\U0001f600".encode(),
        "unassigned": "\U000e1234".encode(),
        "last code point": "\U0010ffff".encode(),
        "lone continuation byte": b"a\x80b",
        "broken UTF-8": b"a\xc3",
        "overlong UTF-8": b"\xc0\xaf",
        "surrogate": b"\xed\xa0\x80",
        "replacement character": "\ufffd".encode(),
        "300 characters": b"n" * 300,
    }
    for name, value in names.items():
        yield Script(f"PUB topic name: {name}", [b"PUB " + value + b"\n" + sized(b"hello")])
        yield Script(f"SUB topic name: {name}", [b"SUB " + value + b" ch\n"])
        yield Script(f"SUB channel name: {name}", [b"SUB <topic> " + value + b"\n"])
    for name in ("65 characters", "empty", "quote", "emoji", "broken UTF-8", "only the suffix", "ephemeral"):
        yield Script(f"MPUB topic name: {name}", [b"MPUB " + names[name] + b"\n" + sized(mpub_body([b"hello"]))])
        yield Script(f"DPUB topic name: {name}", [b"DPUB " + names[name] + b" 5000\n" + sized(b"hello")])
    yield Script("SUB names: both invalid", [b"SUB / /\n"])
    yield Script("DPUB: name and time both invalid", [b"DPUB / x\n" + sized(b"hello")])


def identify_scripts() -> Iterator[Script]:
    for name, data in {
        "size missing": b"",
        "size cut off": b"\0\0",
        "body missing": pack(">i", 5),
        "body cut off": pack(">i", 5) + b"{}",
    }.items():
        yield Script(f"IDENTIFY: {name}", [IDENTIFY_JSON + data], ending="eof")
    for size in (0, -1, -(2**31), 4097, 2**31 - 1):
        yield Script(f"IDENTIFY: size {size}", [IDENTIFY_JSON + pack(">i", size)], profile="small")
    yield Script("IDENTIFY: largest size", [IDENTIFY_JSON + sized(b"{}".ljust(4096))], profile="small")
    yield Script("IDENTIFY: one more than the default largest size", [IDENTIFY_JSON + pack(">i", 5242881)])
    yield Script("IDENTIFY: with parameters", [b"IDENTIFY a b\n" + sized(b"{}")])
    yield Script("IDENTIFY: one byte at a time", [one_byte_at_a_time(identify(feature_negotiation=True))])
    yield Script("IDENTIFY: twice", [identify(client_id="a") + identify(client_id="b", feature_negotiation=True)])
    yield Script(
        "IDENTIFY: a second IDENTIFY keeps the values of the first",
        [
            identify(heartbeat_interval=5000, msg_timeout=2000, sample_rate=7, output_buffer_size=64),
            identify(feature_negotiation=True),
        ],
    )
    yield Script("IDENTIFY: heartbeats off, then SUB", [identify(heartbeat_interval=-1) + SUBSCRIBE])
    yield Script(
        "IDENTIFY: heartbeats off and on again, then SUB",
        [identify(heartbeat_interval=-1) + identify(heartbeat_interval=1000) + SUBSCRIBE],
    )
    yield Script("IDENTIFY: heartbeats off, then SUB without parameters", [identify(heartbeat_interval=-1) + b"SUB\n"])
    yield Script("IDENTIFY: heartbeats off, then PUB", [identify(heartbeat_interval=-1) + HELLO])


def identify_range_scripts() -> Iterator[Script]:
    """Each numeric field of IDENTIFY at its limits and just beyond them, with small limits and with the defaults."""
    small: dict[str, list[int]] = {
        "heartbeat_interval": [-2, -1, 0, 1, 999, 1000, 20000, 20001],
        "output_buffer_size": [-2, -1, 0, 1, 63, 64, 4096, 4097],
        "output_buffer_timeout": [-2, -1, 0, 1, 99, 100, 5000, 5001],
        "sample_rate": [-1, 0, 1, 99, 100, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1],
        "msg_timeout": [-1, 0, 1, 999, 1000, 10000, 10001],
        "deflate_level": [-1, 0, 1, 3, 4, 100],
    }
    default = {
        "heartbeat_interval": [60000, 60001],
        "output_buffer_size": [65536, 65537],
        "output_buffer_timeout": [24, 25, 30000, 30001],
        "msg_timeout": [900000, 900001],
        "deflate_level": [7],
    }
    for profile, table in (("small", small), ("default", default)):
        for key, values in table.items():
            for value in values:
                data = identify(feature_negotiation=True, **{key: value})
                yield Script(f"IDENTIFY {key}: {value} ({profile} limits)", [data], profile=profile)
    for key in ("heartbeat_interval", "output_buffer_size", "msg_timeout"):
        for value in (2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 10**30):
            yield Script(f"IDENTIFY {key}: {value}", [identify(feature_negotiation=True, **{key: value})])
    pairs: list[tuple[str, dict[str, int]]] = [
        ("output_buffer_size -1 overrides the timeout", {"output_buffer_size": -1, "output_buffer_timeout": 1000}),
        ("invalid size and timeout", {"output_buffer_size": 1, "output_buffer_timeout": 1}),
        (
            "every field invalid",
            {"msg_timeout": 1, "sample_rate": 500, "output_buffer_size": 1, "heartbeat_interval": 1},
        ),
        ("invalid rate and timeout", {"msg_timeout": 1, "sample_rate": 500}),
    ]
    for name, fields in pairs:
        yield Script(f"IDENTIFY: {name}", [identify(feature_negotiation=True, **fields)])


def identify_json_scripts() -> Iterator[Script]:
    asked = b'"feature_negotiation":true'
    bodies: dict[str, bytes] = {
        "null": b"null",
        "true": b"true",
        "number": b"5",
        "string": b'"x"',
        "empty array": b"[]",
        "array of objects": b"[{}]",
        "empty object": b"{}",
        "empty": b" ",
        "spaces around": b" \t\r\n{ %s } \n" % asked,
        "trailing garbage": b"{%s}x" % asked,
        "trailing zero byte": b"{%s}\0" % asked,
        "two objects": b"{%s}{}" % asked,
        "trailing comma": b"{%s,}" % asked,
        "comment": b"{%s/* no */}" % asked,
        "single quotes": b"{'feature_negotiation':true}",
        "bare key": b"{feature_negotiation:true}",
        "unclosed": b"{%s" % asked,
        "byte order mark": b"\xef\xbb\xbf{%s}" % asked,
        "UTF-16": "{}".encode("utf-16"),
        "not JSON": b"hello",
        "binary": bytes(range(256)),
        "control character in a string": b'{%s,"client_id":"a\nb"}' % asked,
        "bad escape": b'{%s,"client_id":"\\x"}' % asked,
        "invalid UTF-8 in a string": b'{%s,"client_id":"\xff\xfe"}' % asked,
        "invalid UTF-8 in an unknown key": b'{%s,"\xff":1}' % asked,
        "lone surrogate escape": b'{%s,"client_id":"\\ud800"}' % asked,
        "surrogates in the wrong order": b'{%s,"client_id":"\\udc00\\ud800"}' % asked,
        "zero escape": b'{%s,"client_id":"\\u0000"}' % asked,
        "escaped key": b'{"feature\\u005fnegotiation":true}',
        "keys in capitals": b'{"FEATURE_NEGOTIATION":true,"Sample_Rate":42}',
        "long s and kelvin sign as letters": b'{"FEATURE_NEGOTIATION":true,"\xc5\xbfample_rate":42}',
        "key with a space": b'{%s,"sample_rate ":500}' % asked,
        "duplicate keys, last wins": b'{%s,"sample_rate":500,"sample_rate":42}' % asked,
        "duplicate keys, last invalid": b'{%s,"sample_rate":42,"sample_rate":500}' % asked,
        "duplicate keys of different case": b'{%s,"sample_rate":41,"SAMPLE_RATE":42}' % asked,
        "duplicate keys of different case, exact last": b'{%s,"SAMPLE_RATE":42,"sample_rate":41}' % asked,
        "duplicate keys, null last": b'{%s,"sample_rate":42,"sample_rate":null}' % asked,
        "duplicate keys, wrong type first": b'{%s,"sample_rate":"x","sample_rate":42}' % asked,
        "every field null": b'{%s,"client_id":null,"hostname":null,"heartbeat_interval":null,"sample_rate":null,'
        b'"snappy":null,"deflate":null,"tls_v1":null,"msg_timeout":null}' % asked,
        "unknown fields": b'{%s,"short_id":5,"long_id":{"a":[1,2,{"b":null}]},"x":1e5,"y":-0.5}' % asked,
        "unknown number too large for a double": b'{%s,"x":1e999,"y":-1e999}' % asked,
        "unknown integer of 400 digits": b'{%s,"x":%s}' % (asked, b"9" * 400),
        "unknown NaN": b'{%s,"x":NaN}' % asked,
        "unknown Infinity": b'{%s,"x":Infinity}' % asked,
        "unknown field nested 900 deep": b'{%s,"x":%s%s}' % (asked, b"[" * 900, b"]" * 900),
        "unknown field nested 10001 deep": b'{%s,"x":%s%s}' % (asked, b"[" * 10001, b"]" * 10001),
        "feature_negotiation false": b'{"feature_negotiation":false,"snappy":true,"deflate":true,"sample_rate":5}',
        "feature_negotiation as number": b'{"feature_negotiation":1}',
        "feature_negotiation as string": b'{"feature_negotiation":"true"}',
        "everything a client sends": json.dumps(
            {
                "client_id": "id",
                "hostname": "host",
                "user_agent": "agent/1.0",
                "short_id": "id",
                "long_id": "host",
                "feature_negotiation": True,
                "heartbeat_interval": 30000,
                "output_buffer_size": 16384,
                "output_buffer_timeout": 250,
                "tls_v1": False,
                "snappy": False,
                "deflate": False,
                "deflate_level": 6,
                "sample_rate": 0,
                "msg_timeout": 0,
            }
        ).encode(),
    }
    for number in (
        "1.0",
        "1e3",
        "1E3",
        "-0",
        "01",
        "+1",
        "0x10",
        ".5",
        "5.",
        "1_000",
        '"5"',
        "true",
        "[5]",
        "{}",
        "1e-1",
    ):
        bodies[f"integer as {number}"] = b'{%s,"sample_rate":%s}' % (asked, number.encode())
        bodies[f"time as {number}"] = b'{%s,"msg_timeout":%s}' % (asked, number.encode())
    for text in ("5", "true", "[]", "{}", '"\\u00e9"'):
        bodies[f"string as {text}"] = b'{%s,"hostname":%s}' % (asked, text.encode())
    for text in ("0", "1", '"yes"', "[]", "True", "TRUE"):
        bodies[f"boolean as {text}"] = b'{%s,"snappy":%s}' % (asked, text.encode())
    for name, body in bodies.items():
        yield Script(f"IDENTIFY JSON: {name}", [IDENTIFY_JSON + sized(body)])


def upgrade_scripts() -> Iterator[Script]:
    both = identify(feature_negotiation=True, snappy=True, deflate=True)
    yield Script("upgrade: deflate and snappy together", [both])
    yield Script("upgrade: deflate and snappy without negotiation", [identify(snappy=True, deflate=True)])
    yield Script("upgrade: both requested, none offered", [both], profile="plain")
    yield Script("upgrade: TLS requested, no certificate", [identify(feature_negotiation=True, tls_v1=True)])
    layers: dict[str, Step] = {"deflate": deflate, "snappy": snappy}
    for name, layer in layers.items():
        upgraded = [identify(feature_negotiation=True, **{name: True}), expect(1), layer, expect(1)]
        again = identify(feature_negotiation=True)
        yield Script(f"upgrade: {name}", [*upgraded, *WORK])
        yield Script(f"upgrade: {name}, a fatal error", [*upgraded, b"WHAT\n"])
        yield Script(f"upgrade: {name}, then end of stream", upgraded, ending="eof")
        yield Script(f"upgrade: {name}, IDENTIFY again", [*upgraded, again])
        yield Script(f"upgrade: {name}, then nothing", [*upgraded, quiet()])
        yield Script(f"upgrade: {name}, then garbage", [*upgraded, garbage], ending="closes")
    for level in (0, 1, 6, 9):
        asked = identify(feature_negotiation=True, deflate=True, deflate_level=level)
        steps = [asked, expect(1), deflate, expect(1), *WORK]
        yield Script(f"upgrade: deflate level {level}", steps)
    yield from tls_scripts(layers)


def tls_scripts(layers: dict[str, Step]) -> Iterator[Script]:
    asked = identify(feature_negotiation=True, tls_v1=True)
    upgraded: list[Step] = [asked, expect(1), tls, expect(1)]
    yield Script("upgrade: TLS", [*upgraded, *WORK], profile="tls")
    for name, layer in layers.items():
        steps = [
            identify(feature_negotiation=True, tls_v1=True, **{name: True}),
            *upgraded[1:],
            layer,
            expect(1),
            *WORK,
        ]
        yield Script(f"upgrade: TLS and {name}", steps, profile="tls")
    yield Script("upgrade: TLS offered, not requested", [identify(feature_negotiation=True)], profile="tls")
    yield Script("upgrade: TLS without negotiation", [identify(tls_v1=True), HELLO], profile="tls")
    for command in (b"NOP\n", HELLO, SUBSCRIBE, b"WHAT a b\n", b"\n", auth(b"x"), identify() + nop()):
        name = command.split()[0].decode() if command.split() else "empty line"
        yield Script(f"TLS required: {name} on a plain connection", [command], profile="tls-required")
    yield Script("TLS required: work inside TLS", [*upgraded, *WORK], profile="tls-required")


def publish_scripts() -> Iterator[Script]:
    for command in ("PUB <topic>", "DPUB <topic> 5000"):
        word = command.split()[0]
        line = command.encode() + b"\n"
        for name, data in {
            "size missing": b"",
            "size cut off": b"\0\0\0",
            "body missing": pack(">i", 5),
            "body cut off": pack(">i", 5) + b"hell",
        }.items():
            yield Script(f"{word}: {name}", [line + data], ending="eof")
        for size in (0, -1, -(2**31), 1025, 2**31 - 1):
            yield Script(f"{word}: size {size}", [line + pack(">i", size)], profile="small")
        for size in (1, 1023, 1024):
            yield Script(f"{word}: body of {size}", [line + sized(b"x" * size)], profile="small")
        yield Script(f"{word}: default largest body", [line + sized(b"x" * 1048576)])
        yield Script(f"{word}: one more than the default largest body", [line + pack(">i", 1048577)])
        yield Script(f"{word}: too large, body follows", [line + sized(b"x" * 1025)], profile="small")
        yield Script(f"{word}: half a command, then end of stream", [line[:4]], ending="eof")
    yield Script("PUB: body looks like commands", [pub(TOPIC, b"NOP\nFENCE\n"), SUBSCRIBE, rdy(1), expect(3)])
    yield Script("PUB: zero bytes in the body", [pub(TOPIC, b"\0\0\0\0"), SUBSCRIBE, rdy(1), expect(3)])
    yield Script("PUB: 200 pipelined on two topics", [(HELLO + pub("<topic>.b", b"x")) * 100])
    yield Script("PUB: line ends in CR LF", [b"PUB <topic>\r\n" + sized(b"hello")])
    yield Script("PUB: two spaces", [b"PUB  <topic>\n" + sized(b"hello")])
    for value in ("", "0", "7000", "10000", "10001", "-1", "+1", "1.5", "1e3", "0x10", "abc", "1s", "007000", "١"):
        data = f"DPUB <topic> {value}\n".encode() + sized(b"later")
        yield Script(f"DPUB: time {value!r}", [*SUBSCRIBED, data, expect(1), note_channel], profile="small")
    for integer in BIG_INTEGERS:
        data = f"DPUB <topic> {integer}\n".encode() + sized(b"later")
        yield Script(f"DPUB: time {integer}", [*SUBSCRIBED, data, expect(1), note_channel], profile="small")
    yield Script("DPUB: 0 is delivered at once", [dpub(TOPIC, 0, b"now"), SUBSCRIBE, rdy(1), expect(3)])
    yield Script(
        "DPUB: is deferred, not delivered",
        [SUBSCRIBE, dpub(TOPIC, 5000, b"later"), expect(2), rdy(1), channel_shows(deferred_count=1), quiet()],
    )


def mpub_scripts() -> Iterator[Script]:
    line = b"MPUB <topic>\n"
    one = mpub_body([b"hello"])
    cut: dict[str, bytes] = {
        "outer size missing": b"",
        "outer size cut off": b"\0\0",
        "count missing": pack(">i", 100),
        "count cut off": pack(">i", 100) + b"\0",
        "first size missing": pack(">ii", 100, 1),
        "first size cut off": pack(">ii", 100, 1) + b"\0",
        "first body missing": pack(">iii", 100, 1, 5),
        "first body cut off": pack(">iii", 100, 1, 5) + b"hell",
        "second size missing": pack(">i", 100) + pack(">i", 2) + sized(b"hello"),
        "second body cut off": pack(">i", 100) + pack(">i", 2) + sized(b"hello") + pack(">i", 5) + b"x",
    }
    for name, data in cut.items():
        yield Script(f"MPUB: {name}", [line + data], ending="eof")
    for size in (0, -1, -(2**31), 4097, 2**31 - 1):
        yield Script(f"MPUB: outer size {size}", [line + pack(">i", size)], profile="small")
    for count in (0, -1, -(2**31), 819, 2**31 - 1):
        yield Script(f"MPUB: count {count}", [line + pack(">ii", 100, count)], profile="small")
    yield Script("MPUB: largest count", [line + sized(mpub_body([b"x"] * 818))], profile="small")
    yield Script("MPUB: one more than the default largest count", [line + pack(">ii", 100, 1048576)])
    for size in (0, -1, -(2**31), 1025, 2**31 - 1):
        yield Script(f"MPUB: first message of {size}", [line + pack(">iii", 100, 1, size)], profile="small")
        second = pack(">i", 100) + pack(">i", 2) + sized(b"hello") + pack(">i", size)
        yield Script(f"MPUB: second message of {size}", [line + second], profile="small")
    bodies = [b"x" * 1024] * 3
    yield Script("MPUB: largest messages", [line + sized(mpub_body(bodies))], profile="small")
    yield Script(
        "MPUB: outer size and content at the limit", [line + sized(mpub_body([b"x" * 1018] * 4))], profile="small"
    )
    yield Script("MPUB: outer size smaller than the content", [line + pack(">i", 1) + one, HELLO])
    yield Script("MPUB: outer size larger than the content", [line + pack(">i", 4000) + one, HELLO])
    yield Script(
        "MPUB: content larger than the limit",
        [line + pack(">i", 4096) + mpub_body([b"x" * 1000] * 10)],
        profile="small",
    )
    yield Script("MPUB: bytes after the last message are commands", [line + sized(one + b"NOP\n"), HELLO])
    yield Script("MPUB: one byte at a time", [one_byte_at_a_time(mpub(TOPIC, [b"one", b"two", b"three"]))])
    yield Script("MPUB: pipelined", [mpub(TOPIC, [b"a", b"b"]) * 30])
    yield Script(
        "MPUB: delivered in order",
        [mpub(TOPIC, [b"one", b"two", b"three"]), SUBSCRIBE, rdy(1), expect(3)]
        + [fin(b"<id>"), expect(1)] * 2
        + [fin(b"<id>")],
    )
    yield Script("MPUB: invalid name, body not read", [b"MPUB /\n"])


def consume_scripts() -> Iterator[Script]:
    for value in ("", "0", "1", "99", "100", "101", "-1", "+1", "1.5", "abc", "1 2", "0001", "1\r", "٣"):
        yield Script(f"RDY: {value!r}", [*SUBSCRIBED, f"RDY {value}\n".encode()], profile="small")
    for integer in BIG_INTEGERS:
        yield Script(f"RDY: {integer}", [*SUBSCRIBED, f"RDY {integer}\n".encode()], profile="small")
    yield Script("RDY: default largest", [*SUBSCRIBED, rdy(2500)])
    yield Script("RDY: one more than the default largest", [*SUBSCRIBED, rdy(2501)])
    yield Script("RDY: without a count is 1", [mpub(TOPIC, [b"a", b"b"]), SUBSCRIBE, b"RDY\n", expect(3), quiet()])
    yield Script("RDY: empty count is 0", [HELLO, SUBSCRIBE, b"RDY \n", expect(2), quiet()])
    three = mpub(TOPIC, [b"a", b"b", b"c"])
    yield Script("RDY: is a level", [three, SUBSCRIBE, rdy(2), expect(4), quiet(), fin(b"<id>"), expect(1), quiet()])
    yield Script(
        "RDY: 0 stops", [three, SUBSCRIBE, rdy(1), expect(3), rdy(0), fin(b"<id>"), quiet(), rdy(1), expect(1)]
    )
    yield Script("RDY: raised", [three, SUBSCRIBE, rdy(1), expect(3), rdy(3), expect(2)])
    yield Script(
        "RDY: lowered below what is in flight", [three, SUBSCRIBE, rdy(2), expect(4), rdy(1), fin(b"<id>"), quiet()]
    )
    for command in ("FIN", "TOUCH", "REQ"):
        tail = b" 0\n" if command == "REQ" else b"\n"
        for name, message_id in {
            "empty id": b"",
            "short id": b"0123456789abcde",
            "long id": b"0123456789abcdef0",
            "unknown id": UNKNOWN_ID,
            "id of other bytes": b'"\\\xff\xfe\x00\x01\x02\x03\x04\x05\x06\x07\x08\x0b\x0c\x0e',
            "id of letters": b"zzzzzzzzzzzzzzzz",
        }.items():
            yield Script(f"{command}: {name}", [*SUBSCRIBED, command.encode() + b" " + message_id + tail, HELLO])
        yield Script(
            f"{command}: CR before the newline",
            [*HOLDING, command.encode() + b" <id>" + tail.replace(b"\n", b"\r\n"), quiet()],
        )
        yield Script(
            f"{command}: extra parameter",
            [*HOLDING, rdy(0), command.encode() + b" <id>" + tail[:-1] + b" more\n", quiet()],
        )
    yield Script("FIN: valid", [*HOLDING, fin(b"<id>")])
    yield Script("FIN: twice", [*HOLDING, fin(b"<id>") * 2])
    yield Script("FIN: then REQ", [*HOLDING, fin(b"<id>") + req(b"<id>", 0)])
    yield Script("FIN: then TOUCH", [*HOLDING, fin(b"<id>") + touch(b"<id>")])
    yield Script(
        "FIN: many failures leave the connection open", [*SUBSCRIBED, (fin(UNKNOWN_ID) + touch(UNKNOWN_ID)) * 20]
    )
    yield Script("FIN: while closing", [*HOLDING, b"CLS\n", fin(b"<id>") * 2])
    yield Script("TOUCH: valid, then FIN", [*HOLDING, touch(b"<id>") * 3 + fin(b"<id>")])
    yield Script("TOUCH: while closing", [*HOLDING, b"CLS\n", touch(b"<id>"), fin(b"<id>")])
    yield Script(
        "REQ: at once, delivered again",
        [*HOLDING, req(b"<id>", 0), expect(1), req(b"<id>", 0), expect(1), fin(b"<id>")],
    )
    yield Script("REQ: at once with RDY 0", [*HOLDING, rdy(0), req(b"<id>", 0), quiet(), rdy(1), expect(1)])
    yield Script("REQ: twice", [*HOLDING, rdy(0), req(b"<id>", 0) * 2])
    yield Script("REQ: while closing", [*HOLDING, b"CLS\n", expect(1), req(b"<id>", 0), quiet(), fin(b"<id>")])
    yield Script(
        "REQ: deferred, then FIN", [*HOLDING, req(b"<id>", 5000), fin(b"<id>"), channel_shows(deferred_count=1)]
    )
    for value in ("", "00", "-1", "+1", "1.5", "abc", "0x1", "7000 2", "٣"):
        data = b"REQ <id> " + value.encode() + b"\n"
        yield Script(f"REQ: timeout {value!r}", [*HOLDING, rdy(0), data, fin(b"<id>"), expect(1), note_channel])
    for integer in [10000, 10001, *BIG_INTEGERS]:
        steps = [*HOLDING, rdy(0), b"REQ <id> %d\n" % integer, fin(b"<id>"), expect(1), note_channel]
        yield Script(f"REQ: timeout {integer}", steps, profile="small")
    yield Script("REQ: short id and bad timeout", [*SUBSCRIBED, b"REQ abc xyz\n"])
    yield Script("REQ: unknown id and bad timeout", [*SUBSCRIBED, b"REQ 0123456789abcdef xyz\n"])
    for name, data in {"FIN": fin(b"<id>"), "REQ": req(b"<id>", 0), "TOUCH": touch(b"<id>")}.items():
        yield Script(f"{name}: another client's message", [*HOLDING, on("b"), SUBSCRIBE, data])
        yield Script(f"{name}: a message of another channel", [*HOLDING, on("b"), sub(TOPIC, "other"), data])
    yield Script(
        "FIN: another client's, then the owner's",
        [*HOLDING, on("b"), SUBSCRIBE, fin(b"<id>"), expect(2), on("a"), fin(b"<id>")],
    )
    yield Script(
        "disconnecting does not requeue messages in flight",
        [*HOLDING, disconnect, on("b"), SUBSCRIBE, rdy(1), expect(1), quiet()],
    )
    yield Script("half-closing with a message in flight", [*HOLDING, half_close], ending="closes")
    yield Script("CLS: then end of stream", [*CLOSING], ending="eof")
    yield Script("CLS: twice", [*SUBSCRIBED, b"CLS\nCLS\n"])
    yield Script("CLS: no message is delivered afterwards", [*SUBSCRIBED, b"CLS\n", rdy(5), HELLO, expect(2), quiet()])
    yield Script("CLS: invalid RDY is ignored", [*CLOSING, b"RDY abc\nRDY 99999999\n"])
    yield Script(
        "CLS: a requeued message is delivered to another client",
        [*HOLDING, b"CLS\n", expect(1), req(b"<id>", 0), on("b"), SUBSCRIBE, rdy(1), expect(2)],
    )
    yield Script(
        "two channels get each message",
        [
            SUBSCRIBE,
            rdy(5),
            expect(1),
            on("b"),
            sub(TOPIC, "other"),
            rdy(5),
            expect(1),
            HELLO,
            expect_unordered(2),
            on("a"),
            expect(1),
        ],
    )
    yield Script("a subscriber publishes to itself", [SUBSCRIBE, rdy(1), HELLO, expect(1), expect_unordered(2)])
    yield Script(
        "SUB: one consumer too many",
        [SUBSCRIBE, expect(1), on("b"), SUBSCRIBE, expect(1), on("c"), SUBSCRIBE],
        profile="small",
    )
    yield Script(
        "SUB: ephemeral topic and channel are deleted",
        [sub("<topic>#ephemeral", "ch#ephemeral"), expect(1), disconnect, gone("<topic>#ephemeral")],
    )
    yield Script(
        "SUB: ephemeral channel of a durable topic",
        [HELLO, sub(TOPIC, "ch#ephemeral"), rdy(1), expect(3), fin(b"<id>")],
    )
    yield Script(
        "sample rate 99 drops nothing",
        [identify(sample_rate=99), mpub(TOPIC, [b"%d" % n for n in range(40)]), SUBSCRIBE, rdy(100), expect(43)],
    )
    yield Script("no output buffer", [identify(output_buffer_size=-1), three, SUBSCRIBE, rdy(10), expect(6)])
    yield Script("smallest output buffer", [identify(output_buffer_size=64), three, SUBSCRIBE, rdy(10), expect(6)])
    yield Script(
        "no output buffer timeout, RDY reached",
        [identify(output_buffer_timeout=-1), three, SUBSCRIBE, rdy(3), expect(6)],
    )


def admin_scripts() -> Iterator[Script]:
    """Operations over HTTP while clients are connected."""
    channel = "topic=<topic>&channel=ch"
    yield Script(
        "paused channel",
        [
            *SUBSCRIBED,
            post(f"/channel/pause?{channel}"),
            rdy(1),
            HELLO,
            expect(1),
            quiet(),
            post(f"/channel/unpause?{channel}"),
            expect(1),
        ],
    )
    yield Script(
        "paused topic",
        [
            *SUBSCRIBED,
            post("/topic/pause?topic=<topic>"),
            rdy(1),
            HELLO,
            expect(1),
            quiet(),
            post("/topic/unpause?topic=<topic>"),
            expect(1),
        ],
    )
    yield Script(
        "subscribing to a paused channel",
        [
            HELLO,
            expect(1),
            post(f"/channel/create?{channel}"),
            post(f"/channel/pause?{channel}"),
            SUBSCRIBE,
            rdy(1),
            expect(1),
            quiet(),
        ],
    )
    yield Script("deleted channel", [*SUBSCRIBED, post(f"/channel/delete?{channel}")], ending="closes")
    yield Script("deleted topic", [*SUBSCRIBED, post("/topic/delete?topic=<topic>")], ending="closes")
    yield Script(
        "deleted channel of a client with a message in flight",
        [*HOLDING, post(f"/channel/delete?{channel}")],
        ending="closes",
    )
    yield Script(
        "deleted topic does not disconnect the producer", [HELLO, expect(1), post("/topic/delete?topic=<topic>"), HELLO]
    )
    yield Script("emptied channel", [*HOLDING, post(f"/channel/empty?{channel}"), fin(b"<id>"), expect(1)])
    yield Script(
        "emptied channel: its clients are ready again",
        [*HOLDING, post(f"/channel/empty?{channel}"), on("b"), pub(TOPIC, b"next"), expect(1), on("a"), expect(1)],
    )
    yield Script(
        "emptied topic keeps its channels' messages",
        [HELLO, *SUBSCRIBED, expect(1), channel_shows(depth=1), post("/topic/empty?topic=<topic>"), rdy(1), expect(1)],
    )
    yield Script(
        "messages published before the first channel",
        [
            mpub(TOPIC, [b"a", b"b"]),
            expect(1),
            post(f"/channel/create?{channel}"),
            channel_shows(depth=2),
            SUBSCRIBE,
            rdy(1),
            expect(2),
            fin(b"<id>"),
            expect(1),
        ],
    )


def disk_scripts() -> Iterator[Script]:
    """Messages that pass through the disk queue."""
    bodies = [b"%d" % number for number in range(20)]
    consume: list[Step] = [mpub(TOPIC, bodies), SUBSCRIBE, rdy(1), expect(3)]
    consume += [fin(b"<id>"), expect(1)] * 19
    yield Script("disk: in order", [*consume, fin(b"<id>")], profile="disk")
    yield Script("disk: requeued", [*HOLDING, req(b"<id>", 0), expect(1), fin(b"<id>")], profile="disk")
    yield Script(
        "disk: RDY 0 after one",
        [mpub(TOPIC, bodies), SUBSCRIBE, rdy(1), expect(3), rdy(0), fin(b"<id>"), quiet(), rdy(1), expect(1)],
        profile="disk",
    )


def timed_scripts() -> Iterator[Script]:
    """Timeouts, deferred messages, heartbeats and output buffering."""
    yield Script("time: an unfinished message is delivered again", [*HOLDING, expect(1), fin(b"<id>")], profile="timed")
    yield Script(
        "time: an unfinished message is delivered a third time", [*HOLDING, expect(2), fin(b"<id>")], profile="timed"
    )
    yield Script(
        "time: a timed-out message cannot be finished",
        [*HOLDING, rdy(0), channel_shows(timeout_count=1, depth=1), fin(b"<id>"), touch(b"<id>"), req(b"<id>", 0)],
        profile="timed",
    )
    yield Script(
        "time: a touched message is delivered again later",
        [*HOLDING, touch(b"<id>") * 5, expect(1), fin(b"<id>")],
        profile="timed",
    )
    yield Script(
        "time: a message requeued with a delay", [*HOLDING, req(b"<id>", 200), expect(1), fin(b"<id>")], profile="timed"
    )
    yield Script(
        "time: a requeued message is delivered after the next one",
        [
            mpub(TOPIC, [b"a", b"b"]),
            SUBSCRIBE,
            rdy(1),
            expect(3),
            req(b"<id>", 300),
            expect(1),
            fin(b"<id>"),
            expect(1),
        ],
        profile="timed",
    )
    yield Script(
        "time: a deferred message",
        [dpub(TOPIC, 200, b"later"), SUBSCRIBE, rdy(1), expect(3), fin(b"<id>")],
        profile="timed",
    )
    yield Script(
        "time: deferred messages in the order of due times",
        [
            dpub(TOPIC, 900, b"second"),
            dpub(TOPIC, 200, b"first"),
            SUBSCRIBE,
            rdy(1),
            expect(4),
            fin(b"<id>"),
            expect(1),
        ],
        profile="timed",
    )
    yield Script(
        "time: delivered to another client after a disconnect",
        [*HOLDING, disconnect, on("b"), SUBSCRIBE, rdy(1), expect(2), fin(b"<id>")],
        profile="timed",
    )
    yield Script("time: the client's own timeout", [identify(msg_timeout=1000), *HOLDING, expect(2)], profile="scanned")
    yield Script(
        "time: heartbeats",
        [
            identify(heartbeat_interval=1000),
            expect(1),
            expect_heartbeat,
            nop(),
            expect_heartbeat,
            nop(),
            expect_heartbeat,
        ],
    )
    yield Script(
        "time: heartbeats to a consumer", [identify(heartbeat_interval=1000), *SUBSCRIBED, expect(1), expect_heartbeat]
    )
    yield Script("time: no answer to heartbeats", [identify(heartbeat_interval=1000), expect(1)], ending="closes")
    yield Script("time: a partly filled output buffer is flushed", [HELLO, SUBSCRIBE, rdy(100), expect(3)])
    yield Script(
        "time: a slow output buffer", [identify(output_buffer_timeout=1000), HELLO, SUBSCRIBE, rdy(100), expect(4)]
    )


def auth_scripts() -> Iterator[Script]:
    """Authorization. ``authserver.py`` defines the secrets."""
    yield Script("auth: not configured", [auth(b"all")])
    for name, data in {
        "PUB": HELLO,
        "MPUB": mpub(TOPIC, [b"x"]),
        "DPUB": dpub(TOPIC, 5000, b"x"),
        "SUB": SUBSCRIBE,
    }.items():
        yield Script(f"auth: {name} before AUTH", [data], profile="auth")
        for secret in ("all", "publish-only", "subscribe-only", "other-topic", "channel-plus", "unanchored"):
            yield Script(f"auth: {name} with {secret}", [auth(secret.encode()), data], profile="auth")
    yield Script("auth: MPUB refused before its body is read", [b"MPUB <topic>\n"], profile="auth")
    yield Script("auth: PUB refused after its body is read", [b"PUB <topic>\n" + pack(">i", 0)], profile="auth")
    yield Script("auth: IDENTIFY reports that it is required", [identify(feature_negotiation=True)], profile="auth")
    for secret in (
        "no-authorizations",
        "refused",
        "broken",
        "ttl-zero",
        "bad-regex",
        "bad-permission",
        "wrong-type",
        "two-entries",
        "ü ä&=+%",
    ):
        yield Script(f"auth: secret {secret}", [auth(secret.encode())], profile="auth")
    yield Script("auth: twice", [auth(b"all") * 2], profile="auth")
    yield Script("auth: after SUB", [auth(b"all"), SUBSCRIBE, auth(b"all")], profile="auth")
    yield Script("auth: after IDENTIFY", [identify() + auth(b"all") + identify()], profile="auth")
    yield Script(
        "auth: the auth server is queried again after the TTL",
        [auth(b"once"), HELLO, expect(2), quiet(1.2), HELLO],
        profile="auth",
    )
    for name, data in {"size missing": b"", "size cut off": b"\0", "body cut off": pack(">i", 9) + b"all"}.items():
        yield Script(f"AUTH: {name}", [b"AUTH\n" + data], ending="eof")
    for size in (0, -1, 4097):
        yield Script(f"AUTH: size {size}", [b"AUTH\n" + pack(">i", size)], profile="small")


def all_scripts() -> list[Script]:
    groups: Iterable[Iterator[Script]] = (
        magic_scripts(),
        line_scripts(),
        state_scripts(),
        name_scripts(),
        identify_scripts(),
        identify_range_scripts(),
        identify_json_scripts(),
        upgrade_scripts(),
        publish_scripts(),
        mpub_scripts(),
        consume_scripts(),
        admin_scripts(),
        disk_scripts(),
        timed_scripts(),
        auth_scripts(),
    )
    return [script for group in groups for script in group]
