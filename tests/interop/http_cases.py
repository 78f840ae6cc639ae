"""The HTTP requests that are sent to Go's nsqd and to ours.

A case is a name and a list of requests. ``<topic>`` in a target stands for a topic that only this case uses. Both
daemons run with FLAGS.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from struct import pack

from rawclient import mpub_body

FLAGS = (
    "--max-msg-size=1024",
    "--max-body-size=4096",
    "--max-req-timeout=10s",
    "--statsd-prefix=prefix.%s.x",
    "--e2e-processing-latency-percentile=0.5,0.99",
    "--max-output-buffer-timeout=7s",
    "--node-id=77",
)


@dataclass(frozen=True)
class Request:
    method: str
    target: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    name: str
    requests: list[Request]


def get(target: str) -> Request:
    return Request("GET", target)


def post(target: str, body: bytes | None = None, **headers: str) -> Request:
    return Request("POST", target, body, {name.replace("_", "-"): value for name, value in headers.items()})


def put(target: str, body: bytes | None = None) -> Request:
    return Request("PUT", target, body)


CREATE = post("/topic/create?topic=<topic>")
CREATE_CHANNEL = post("/channel/create?topic=<topic>&channel=ch")
TOPIC_STATE = get("/stats?format=json&include_mem=false&topic=<topic>")

ROUTES = (
    "/ping",
    "/info",
    "/stats?format=json&include_mem=false&topic=<topic>",
    "/pub?topic=<topic>",
    "/mpub?topic=<topic>",
    *(f"/topic/{verb}?topic=<topic>" for verb in ("create", "delete", "empty", "pause", "unpause")),
    *(f"/channel/{verb}?topic=<topic>&channel=ch" for verb in ("create", "delete", "empty", "pause", "unpause")),
    "/config/log_level",
)
METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH")

# Valid and invalid values of one query parameter, as written in the query.
NAMES = {
    "missing": "",
    "empty": "{}=",
    "without equals sign": "{}",
    "valid punctuation": "{}=<topic>.-_09azAZ",
    "64 characters": "{}=<topic64>",
    "65 characters": "{}=<topic64>x",
    "ephemeral": "{}=<topic>%23ephemeral",
    "raw hash": "{}=<topic>#ephemeral",
    "slash": "{}=a/b",
    "percent slash": "{}=a%2Fb",
    "plus": "{}=a+b",
    "space": "{}=a%20b",
    "UTF-8": "{}=%C3%A9",
    "broken UTF-8": "{}=%FF",
    "zero byte": "{}=a%00",
    "newline at the end": "{}=<topic>%0A",
    "twice, first valid": "{}=<topic>&{}=/",
    "twice, first invalid": "{}=/&{}=<topic>",
    "in capitals": "TOPIC=<topic>&CHANNEL=ch",
    "after an empty pair": "&&{}=<topic>&",
    "escaped name": "%74opic=<topic>&%63hannel=ch",
    "bad escape": "{}=%zz",
    "cut off escape": "{}=<topic>%2",
    "bad escape elsewhere": "{}=<topic>&x=%zz",
    "semicolon": "{}=<topic>;x=1",
    "question mark": "{}=<topic>&x=??",
}


DEFERRALS = [
    "0",
    "1",
    "9000",
    "10000",
    "10001",
    "-1",
    "%2B5",
    "+5",
    "1.5",
    "abc",
    "0x5",
    "1_000",
    "00009000",
    "1s",
    "9000&defer=x",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "9223372036854776",
]


def method_cases() -> Iterator[Case]:
    for route in ROUTES:
        for method in METHODS:
            yield Case(f"{method} {route}", [CREATE, CREATE_CHANNEL, Request(method, route, b"x"), TOPIC_STATE])
    yield Case("OPTIONS *", [Request("OPTIONS", "*")])
    yield Case("OPTIONS of an unknown path", [Request("OPTIONS", "/nothing")])


def path_cases() -> Iterator[Case]:
    for path in (
        "/",
        "/nothing",
        "/ping/",
        "/ping//",
        "//ping",
        "/PING",
        "/Ping",
        "/ping/x",
        "/pin",
        "/pingx",
        "/./ping",
        "/x/../ping",
        "/../ping",
        "/%70ing",
        "/ping%2F",
        "/ping?a=b",
        "/ping/?a=b",
        "/PING?a=%20b",
        "/info/",
        "/INFO",
        "/stats/?format=json",
        "/topic",
        "/topic/",
        "/topic/nothing",
        "/channel",
        "/config",
        "/config/",
        "/config/log_level/",
        "/config/log_level/x",
        "/CONFIG/log_level",
        "/debug",
        "/debug/",
        "/put?topic=x",
        "/mput?topic=x",
        "/create_topic?topic=x",
        "/empty_channel",
        "/favicon.ico",
        "http://localhost/ping",
    ):
        yield Case(f"path {path}", [get(path)])
    for path in (
        "/",
        "/nothing",
        "/pub/?topic=<topic>",
        "/PUB?topic=<topic>",
        "/topic/create/?topic=<topic>",
        "//pub?topic=<topic>",
    ):
        yield Case(f"POST to path {path}", [post(path, b"hello"), TOPIC_STATE])
    for path in (
        "/Topic/Create?topic=<topic>",
        "/topic//create?topic=<topic>",
        "/topic/CREATE?topic=<topic>",
        "/config/log_level/",
    ):
        yield Case(f"POST to path {path}", [post(path), TOPIC_STATE])
    yield Case("PUT to path /config/log_level/", [put("/config/log_level/", b"info")])


def publish_cases() -> Iterator[Case]:
    for name, query in NAMES.items():
        target = "/{}?" + query.replace("{}", "topic")
        yield Case(f"/pub, topic {name}", [post(target.format("pub"), b"hello"), TOPIC_STATE])
        yield Case(f"/mpub, topic {name}", [post(target.format("mpub"), b"a\nb\n"), TOPIC_STATE])
        yield Case(
            f"/mpub binary, topic {name}",
            [post(target.format("mpub") + "&binary=true", mpub_body([b"a"])), TOPIC_STATE],
        )
    for name, body in {
        "none": None,
        "empty": b"",
        "1": b"x",
        "1024": b"x" * 1024,
        "1025": b"x" * 1025,
        "9000": b"x" * 9000,
    }.items():
        yield Case(f"/pub, body {name}", [post("/pub?topic=<topic>", body), TOPIC_STATE])
        yield Case(f"/pub, body {name}, no topic", [post("/pub", body)])
        yield Case(f"/pub, body {name}, invalid topic", [post("/pub?topic=/", body)])
    for value in DEFERRALS:
        yield Case(f"/pub, defer={value}", [post(f"/pub?topic=<topic>&defer={value}", b"later"), TOPIC_STATE])
    yield Case("/pub, defer without value", [post("/pub?topic=<topic>&defer", b"later"), TOPIC_STATE])
    yield Case("/pub, binary body", [post("/pub?topic=<topic>", bytes(range(256))), TOPIC_STATE])
    yield Case(
        "/pub, form body",
        [post("/pub?topic=<topic>", b"topic=other&x=1", Content_Type="application/x-www-form-urlencoded"), TOPIC_STATE],
    )
    yield Case(
        "/pub, topic only in a form body",
        [post("/pub", b"topic=<topic>", Content_Type="application/x-www-form-urlencoded")],
    )


def mpub_cases() -> Iterator[Case]:
    texts = {
        "none": None,
        "empty": b"",
        "one line": b"one",
        "one line and newline": b"one\n",
        "three lines": b"one\ntwo\nthree",
        "empty lines": b"\n\none\n\n\ntwo\n\n",
        "only newlines": b"\n\n\n",
        "CR LF": b"one\r\ntwo\r\n",
        "only CR LF": b"\r\n",
        "zero bytes": b"\0\n\0",
        "line of 1024": b"x" * 1024 + b"\n",
        "line of 1025": b"x" * 1025,
        "valid lines, then 1025": b"one\ntwo\n" + b"x" * 1025 + b"\n",
        "4096 in all": (b"x" * 1023 + b"\n") * 4,
        "4097 in all": (b"x" * 1023 + b"\n") * 4 + b"x",
        "4096 newlines": b"\n" * 4096,
        "4097 newlines": b"\n" * 4097,
    }
    for name, body in texts.items():
        yield Case(f"/mpub, {name}", [post("/mpub?topic=<topic>", body), TOPIC_STATE])
    binaries = {
        "one": mpub_body([b"one"]),
        "three": mpub_body([b"one", b"two\nlines", b"\0"]),
        "empty": b"",
        "count cut off": b"\0\0",
        "count only": pack(">i", 1),
        "count 0": pack(">i", 0),
        "count -1": pack(">i", -1),
        "count 818": mpub_body([b"x"] * 818),
        "count 819": mpub_body([b"x"] * 818 + [b"y"])[:4094],
        "count too large": pack(">i", 2**31 - 1),
        "size 0": pack(">ii", 1, 0),
        "size -1": pack(">ii", 1, -1),
        "size 1024": mpub_body([b"x" * 1024]),
        "size 1025": mpub_body([b"x" * 1025]),
        "second size 1025": mpub_body([b"one", b"x" * 1025]),
        "second cut off": mpub_body([b"one", b"two"])[:-1],
        "bytes left over": mpub_body([b"one"]) + b"more",
        "4097 in all": mpub_body([b"x" * 1018] * 4) + b"y",
        "text": b"one\ntwo\n",
    }
    for name, body in binaries.items():
        yield Case(f"/mpub binary, {name}", [post("/mpub?topic=<topic>&binary=true", body), TOPIC_STATE])
    for value in ("", "true", "1", "false", "0", "TRUE", "yes", "false&binary=true", "no"):
        for name, body in {"text": b"a\nb\n", "binary": mpub_body([b"one"])}.items():
            yield Case(
                f"/mpub binary={value}, {name} body", [post(f"/mpub?topic=<topic>&binary={value}", body), TOPIC_STATE]
            )
    yield Case("/mpub binary without value", [post("/mpub?topic=<topic>&binary", mpub_body([b"one"])), TOPIC_STATE])
    yield Case("/mpub defer is ignored", [post("/mpub?topic=<topic>&defer=x", b"a\nb"), TOPIC_STATE])
    yield Case("/mpub too large, no topic", [post("/mpub", b"x" * 5000)])
    yield Case("/mpub too large, invalid topic", [post("/mpub?topic=/", b"x" * 5000)])


def admin_cases() -> Iterator[Case]:
    for verb in ("create", "delete", "empty", "pause", "unpause"):
        for name, query in NAMES.items():
            topic = query.replace("{}", "topic")
            yield Case(f"/topic/{verb}, topic {name}", [CREATE, post(f"/topic/{verb}?{topic}"), TOPIC_STATE])
            target = f"/channel/{verb}?{topic}&channel=ch"
            yield Case(f"/channel/{verb}, topic {name}", [CREATE, CREATE_CHANNEL, post(target), TOPIC_STATE])
            target = f"/channel/{verb}?topic=<topic>&{query.replace('{}', 'channel')}"
            yield Case(f"/channel/{verb}, channel {name}", [CREATE, CREATE_CHANNEL, post(target), TOPIC_STATE])
        yield Case(f"/topic/{verb}, unknown topic", [post(f"/topic/{verb}?topic=<topic>"), TOPIC_STATE])
        yield Case(f"/topic/{verb}, twice", [CREATE, *[post(f"/topic/{verb}?topic=<topic>")] * 2, TOPIC_STATE])
        yield Case(f"/channel/{verb}, unknown topic", [post(f"/channel/{verb}?topic=<topic>&channel=ch"), TOPIC_STATE])
        yield Case(
            f"/channel/{verb}, unknown channel",
            [CREATE, post(f"/channel/{verb}?topic=<topic>&channel=ch"), TOPIC_STATE],
        )
        twice = [post(f"/channel/{verb}?topic=<topic>&channel=ch")] * 2
        yield Case(f"/channel/{verb}, twice", [CREATE, CREATE_CHANNEL, *twice, TOPIC_STATE])
        yield Case(
            f"/topic/{verb}, with a body", [CREATE, post(f"/topic/{verb}?topic=<topic>", b"x" * 5000), TOPIC_STATE]
        )
    yield Case(
        "/topic/empty clears the backlog",
        [post("/mpub?topic=<topic>", b"a\nb"), post("/topic/empty?topic=<topic>"), TOPIC_STATE],
    )
    yield Case(
        "/stats shows a paused topic",
        [CREATE, post("/topic/pause?topic=<topic>"), TOPIC_STATE, post("/topic/unpause?topic=<topic>"), TOPIC_STATE],
    )
    pause = post("/channel/pause?topic=<topic>&channel=ch")
    unpause = post("/channel/unpause?topic=<topic>&channel=ch")
    yield Case("/stats shows a paused channel", [CREATE, CREATE_CHANNEL, pause, TOPIC_STATE, unpause, TOPIC_STATE])


OPTIONS = [
    "id",
    "node_id",
    "log_level",
    "log_prefix",
    "tcp_address",
    "http_address",
    "https_address",
    "broadcast_address",
    "broadcast_tcp_port",
    "broadcast_http_port",
    "nsqlookupd_tcp_addresses",
    "lookupd_tcp_address",
    "auth_http_addresses",
    "auth_http_address",
    "http_client_connect_timeout",
    "http_client_request_timeout",
    "mem_queue_size",
    "max_bytes_per_file",
    "sync_every",
    "sync_timeout",
    "queue_scan_selection_count",
    "queue_scan_worker_pool_max",
    "queue_scan_interval",
    "msg_timeout",
    "max_msg_timeout",
    "max_msg_size",
    "max_body_size",
    "max_req_timeout",
    "client_timeout",
    "max_heartbeat_interval",
    "max_rdy_count",
    "max_output_buffer_size",
    "max_output_buffer_timeout",
    "min_output_buffer_timeout",
    "output_buffer_timeout",
    "max_channel_consumers",
    "statsd_address",
    "statsd_prefix",
    "statsd_interval",
    "statsd_mem_stats",
    "statsd_udp_packet_size",
    "statsd_exclude_ephemeral",
    "e2e_processing_latency_window_time",
    "e2e_processing_latency_percentiles",
    "e2e_processing_latency_percentile",
    "tls_cert",
    "tls_key",
    "tls_client_auth_policy",
    "tls_root_ca_file",
    "tls_required",
    "deflate",
    "max_deflate_level",
    "snappy",
    "version",
    "config",
    "verbose",
    "worker_id",
    "nothing",
    "LOG_LEVEL",
    "log-level",
]


# Without null and [null], which differ: docs/decisions/0004-differences-from-go-nsq.md.
ADDRESS_LISTS = [
    *("[]", "[1]", "{}", "nonsense", "", "[[]]"),
    *('["127.0.0.1:1"]', '"127.0.0.1:1"', '["a","b"] ', '["a"]x', '["\\u0041"]'),
]


def config_cases() -> Iterator[Case]:
    for option in OPTIONS:
        yield Case(f"option {option!r}", [get(f"/config/{option}")])
    for value in (
        "debug",
        "info",
        "warn",
        "error",
        "fatal",
        "INFO",
        "Warn",
        "warning",
        "1",
        "",
        " info",
        "info\n",
        '"info"',
        "x" * 1024,
        "x" * 1025,
    ):
        show = [put("/config/log_level", value.encode()), get("/config/log_level"), put("/config/log_level", b"info")]
        yield Case(f"PUT /config/log_level {value[:20]!r} of {len(value)}", show)
    for value in ADDRESS_LISTS:
        name = "/config/nsqlookupd_tcp_addresses"
        yield Case(f"PUT {name} {value}", [put(name, value.encode()), get(name), put(name, b"[]"), get(name)])
    for option in ("max_msg_size", "verbose", "nothing", "lookupd_tcp_address", ""):
        yield Case(f"PUT /config/{option}", [put(f"/config/{option}", b"1")])
        yield Case(f"PUT /config/{option}, no body", [put(f"/config/{option}")])


def stats_cases() -> Iterator[Case]:
    """/stats of a topic that does not exist. test_http_differential.py compares /stats of daemons with clients."""
    for query in (
        "",
        "format=json",
        "format=JSON",
        "format=text",
        "format=",
        "format=json&format=text",
        "include_mem=false",
        "x=%zz",
        "format=json;x",
    ):
        yield Case(f"/stats of an unknown topic, {query}", [get(f"/stats?topic=<topic>&{query}")])
    yield Case("/stats with a body", [Request("GET", "/stats?format=json&topic=<topic>&include_mem=false", b"body")])


def all_cases() -> list[Case]:
    groups = (method_cases(), path_cases(), publish_cases(), mpub_cases(), admin_cases(), config_cases(), stats_cases())
    return [case for group in groups for case in group]
