"""All fuzz targets: name, check, and tokens for mutators."""

from collections.abc import Callable
from dataclasses import dataclass

import directories
import target_doctor
import target_files
import target_http
import target_layers
import target_log
import target_session
import target_wire
from mutation import corpus

SIZES = (b"\x00\x00\x00\x00", b"\x00\x00\x00\x01", b"\x00\x00\x00\x05", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff")
COMMANDS = (
    *SIZES,
    b"\n",
    b"\r\n",
    b" ",
    b"  V2",
    b"IDENTIFY\n",
    b"AUTH\n\x00\x00\x00\x01x",
    b"PUB t\n\x00\x00\x00\x01x",
    b"DPUB t 10\n\x00\x00\x00\x01x",
    b"MPUB t\n\x00\x00\x00\x09\x00\x00\x00\x01\x00\x00\x00\x01x",
    b"SUB t c\n",
    b"RDY 1\n",
    b"FIN 0123456789abcdef\n",
    b"REQ 0123456789abcdef 0\n",
    b"TOUCH 0123456789abcdef\n",
    b"CLS\n",
    b"NOP\n",
    b"t#ephemeral",
    b"99999999999999999999",
    b"-1",
)
JSON = (
    b"{", b"}", b"[", b"]", b'"', b":", b",", b"null", b"true", b"false", b"0", b"-1", b"1.5", b"1e9", b"NaN",
    b"9223372036854775807", b"9223372036854775808", b"18446744073709551616", b'"\\ud800"', b"\\u0000", b"\xff",
)  # fmt: skip
IDENTIFY = (
    *JSON, b'"snappy":true', b'"deflate":true', b'"tls_v1":true', b'"feature_negotiation":true', b'"deflate_level":99',
    b'"sample_rate":100', b'"heartbeat_interval":-1', b'"output_buffer_size":-1', b'"msg_timeout":0', b'"client_id":""',
)  # fmt: skip
XPUB = (
    *SIZES, *JSON, b"\x00\x02{}", b'"producer":"p"', b'"seq":1', b'"sync":true', b'"defer":5',
    b"\x00\x00\x00\x01\x00\x00\x00\x01x",
)  # fmt: skip
# Go's nsqd does not know these, so they are not in the inputs that are compared with it.
XPUB_COMMANDS = (
    *COMMANDS,
    *XPUB,
    b'"nsqx":true',
    b"XPUB x\n\x00\x00\x00\x0d\x00\x02{}\x00\x00\x00\x01\x00\x00\x00\x01x",
    b'XPUB x\n\x00\x00\x00\x25\x00\x1a{"producer":"p","seq":101}\x00\x00\x00\x01\x00\x00\x00\x01x',
)
HTTP = (
    b"\r\n", b"\n", b"\r", b"\r\n\r\n", b" ", b"\t", b"\x00", b"GET /echo HTTP/1.1\r\n", b"Host: x\r\n", b"POST ",
    b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Content-Length: +5\r\n", b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: identity\r\n", b"Transfer-Encoding : chunked\r\n", b"Connection: close\r\n",
    b"Connection: upgrade\r\nUpgrade: h2c\r\n", b"Expect: 100-continue\r\n", b"HTTP/1.0", b"HTTP/0.9", b"0\r\n\r\n",
    b"5\r\nhello\r\n", b"ffffffffffffffff1\r\n", b";x=y", b"http://x/echo", b"*", b"%00", b"%", b"?", b"&", b";", b"//",
)  # fmt: skip
SNAPPY = (
    b"\xff\x06\x00\x00sNaPpY",
    b"\x00\x05\x00\x00",
    b"\x01\x05\x00\x00",
    b"\xfe\x02\x00\x00xx",
    b"\x80\x00\x00\x00",
)
DIRECTORY = (
    *SIZES,
    b"t:c.diskqueue.meta.dat\n",
    b"t:c.diskqueue.000000.dat\n",
    b"t:c.diskqueue.000001.dat\n",
    b"t:c.deferred.dat\n",
    b"nsqd.dat\n",
    b"0\n0,0\n0,0\n",
    b"9223372036854775808",
    b"-1",
    b"999999999",
)  # fmt: skip
LOG = (*SIZES, b"NXB1", b"NXF1", b"NXE1", b"NXC1", bytes(8))
LOG_DIRECTORY = (
    *LOG,
    b"nsqx.commit.0\n",
    b"nsqx.commit.1\n",
    b"nsqx.commit.2\n",
    b"t.topic/id\n",
    b"u.topic/00000000000000000000.seg\n",
    b"t.diskqueue.meta.dat\n",
)
REGISTER = (b"  V1", b"IDENTIFY\n", b"REGISTER t c\n", b"UNREGISTER t\n", b"PING\n", b"\n", b" ", b"\xc2\x85", *SIZES)


@dataclass(frozen=True)
class Target:
    """A check that takes any bytes and raises if the code under test fails on them."""

    name: str
    check: Callable[[bytes], None]
    tokens: tuple[bytes, ...]
    more_seeds: Callable[[], list[bytes]] = list

    def seeds(self) -> list[bytes]:
        """Return the first inputs: the stored ones, and those that the code makes."""
        return corpus(self.name) + self.more_seeds()


def _classic_directories() -> list[bytes]:
    return directories.seeds("classic")


def _known_directories() -> list[bytes]:
    return corpus("directory") + _classic_directories()


def _log_directories() -> list[bytes]:
    return directories.seeds("log")


TARGETS = (
    Target("commands", target_wire.check_commands, COMMANDS),
    Target("frames", target_wire.check_frames, (*SIZES, b"OK", b"_heartbeat_", b"\x00\x00\x00\x06\x00\x00\x00\x00OK")),
    Target("identify", target_wire.check_identify, IDENTIFY),
    Target("xpub", target_wire.check_xpub, XPUB),
    Target("session", target_session.check_session, COMMANDS + IDENTIFY + SNAPPY),
    Target("xpub_session", target_session.check_session, XPUB_COMMANDS),
    Target("lookup_session", target_session.check_lookup_session, REGISTER + JSON),
    Target("introduction", target_wire.check_introduction, JSON),
    Target("http_requests", target_http.check_http_requests, HTTP),
    Target("http_answer", target_http.check_http_answer, HTTP),
    Target("query", target_http.check_query, (b"%", b"%41", b"+", b"&", b"=", b";", b"topic", b"\xff")),
    Target("grants", target_http.check_grants, JSON),
    Target("snappy", target_layers.check_snappy, SNAPPY),
    Target("deflate", target_layers.check_deflate, (b"\x00\x00\xff\xff", b"\x01", b"\x03\x00")),
    Target("round_trip", target_layers.check_round_trip, (b"\x00" * 200,)),
    Target("directory", target_files.check_directory, DIRECTORY + JSON, _classic_directories),
    Target(
        "doctor", target_doctor.check_doctor, DIRECTORY + JSON, lambda: corpus("directory") + _classic_directories()
    ),
    Target("log_directory", target_files.check_log_directory, LOG_DIRECTORY, _log_directories),
    Target("log_doctor", target_doctor.check_log_doctor, LOG_DIRECTORY, _log_directories),
    Target("log_batch", target_log.check_batch, LOG, target_log.batch_seeds),
    Target("commit_frames", target_log.check_frames, LOG, target_log.frame_seeds),
    Target("log_state", target_log.check_state, SIZES, target_log.state_seeds),
    Target("metadata", target_files.check_metadata, (*JSON, b'"name":"../x"', b'"channels":[', b'"paused":true')),
    Target("due_times", target_files.check_due_times, JSON),
)


def target_named(name: str) -> Target:
    """Return the target of that name."""
    (found,) = (target for target in TARGETS if target.name == name)
    return found
