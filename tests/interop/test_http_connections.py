"""HTTP framing: both daemons respond in the same way to valid and malformed requests and close the same connections."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from daemons import Daemon, Fleet

FLAGS = ("--max-msg-size=1024", "--max-body-size=4096")
SOCKET_TIMEOUT_S = 20
SHOWN_HEADERS = ("content-type", "x-nsq-content-type", "content-length", "connection", "transfer-encoding")


def request(line: str, *headers: str, body: bytes = b"", version: str = "HTTP/1.1") -> bytes:
    """Encode a request with a Host header, and the bytes after it."""
    return "\r\n".join([f"{line} {version}", "Host: localhost", *headers, "", ""]).encode() + body


def publish(target: str, body: bytes, *headers: str) -> bytes:
    return request(f"POST {target}", f"Content-Length: {len(body)}", *headers, body=body)


def chunked(target: str, *chunks: bytes) -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))
    return request(f"POST {target}", "Transfer-Encoding: chunked", body=body)


PING = request("GET /ping")
PUB = "/pub?topic=p"
HELLO = publish(PUB, b"hello")

# Requests that are sent in one piece. A request after the first shows whether the daemon kept the connection.
CONVERSATIONS: dict[str, bytes] = {
    "one request": PING,
    "pipelined": PING * 3,
    "close requested": request("GET /ping", "Connection: close") + PING,
    "HTTP/1.0": request("GET /ping", version="HTTP/1.0") + PING,
    "HTTP/1.0 kept alive": request("GET /ping", "Connection: keep-alive", version="HTTP/1.0") + PING,
    "publishes": HELLO * 3,
    "an error between two requests": HELLO + publish("/pub", b"hello") + PING,
    "body of an unknown path": publish("/nothing", b"hello") + PING,
    "body of a GET": request("GET /ping", "Content-Length: 5", body=b"hello") + PING,
    "chunked": chunked(PUB, b"abc", b"de") + PING,
    "chunked with extension": request(
        f"POST {PUB}", "Transfer-Encoding: chunked", body=b"3;x=y\r\nabc\r\n0\r\nTrailer: x\r\n\r\n"
    )
    + PING,
    "chunked and empty": chunked(PUB) + PING,
    "chunked, largest": chunked(PUB, b"x" * 1000, b"x" * 24) + PING,
    "chunked and too large": chunked(PUB, b"x" * 1025),
    "chunked MPUB": chunked("/mpub?topic=p", b"a\nb\n", b"c") + PING,
    "chunked MPUB, too large": chunked("/mpub?topic=p", b"\n" * 4097),
    "chunked binary MPUB": chunked("/mpub?topic=p&binary=1", b"\0\0\0\1\0\0\0\5he", b"llo") + PING,
    "100-continue": publish(PUB, b"hello", "Expect: 100-continue"),
    "unknown expectation": publish(PUB, b"hello", "Expect: a miracle"),
    "unknown method": request("WHAT /ping") + PING,
    "lower case method": request("get /ping") + PING,
    "no Host": b"GET /ping HTTP/1.1\r\n\r\n",
    "no Host, HTTP/1.0": b"GET /ping HTTP/1.0\r\n\r\n",
    "two Hosts": request("GET /ping", "Host: y"),
    "no version": b"GET /ping\r\n\r\n",
    "unknown version": request("GET /ping", version="HTTP/9.9"),
    "HTTP/1.2": request("GET /ping", version="HTTP/1.2"),
    "lower case version": request("GET /ping", version="http/1.1"),
    "not HTTP": b"nonsense\r\n\r\n",
    "TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "NSQ magic": b"  V2NOP\r\n\r\n",
    "newlines without CR": PING.replace(b"\r\n", b"\n"),
    "empty lines first": b"\r\n\r\n" + PING,
    "header without colon": request("GET /ping", "wrong"),
    "space before the colon": request("GET /ping", "A : b"),
    "folded header": request("GET /ping", "A: b", " c"),
    "zero byte in a header": request("GET /ping", "A: \0"),
    "header name with space": request("GET /ping", "A B: c"),
    "content length is a word": request(f"POST {PUB}", "Content-Length: x"),
    "content length is negative": request(f"POST {PUB}", "Content-Length: -1"),
    "content length has a sign": request(f"POST {PUB}", "Content-Length: +5", body=b"hello"),
    "content length is huge": request(f"POST {PUB}", "Content-Length: 99999999999999999999"),
    "two content lengths": request(f"POST {PUB}", "Content-Length: 1", "Content-Length: 2", body=b"ab"),
    "the same content length twice": request(f"POST {PUB}", "Content-Length: 2", "Content-Length: 2", body=b"ab"),
    "length and chunked": request(
        f"POST {PUB}", "Content-Length: 1", "Transfer-Encoding: chunked", body=b"1\r\na\r\n0\r\n\r\n"
    ),
    "unknown transfer encoding": request(f"POST {PUB}", "Transfer-Encoding: gzip"),
    "bad chunk size": request(f"POST {PUB}", "Transfer-Encoding: chunked", body=b"zz\r\nabc\r\n0\r\n\r\n"),
    "chunk longer than its size": request(f"POST {PUB}", "Transfer-Encoding: chunked", body=b"1\r\nabc\r\n0\r\n\r\n"),
    "body cut off": HELLO[:-1],
    "MPUB body cut off": publish("/mpub?topic=p", b"a\nb\nc")[:-1],
    "binary MPUB body cut off": publish("/mpub?topic=p&binary=1", b"\0\0\0\1\0\0\0\5hello")[:-1],
    "head cut off": PING[:-2],
    "nothing": b"",
    "too large, never sent": request(f"POST {PUB}", "Content-Length: 5000"),
    "too large, then another request": publish(PUB, b"x" * 1025) + PING,
    "long header": request("GET /ping", "A: " + "x" * 100_000),
    "long path": request("GET /" + "x" * 100_000),
    "space in the target": request("GET /pi ng"),
    "bad escape in the path": request("GET /%zz"),
    "no slash": request("GET ping"),
    "empty target": request("GET "),
    "bytes in the path": b"GET /p\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "bytes in the query": b"POST /topic/create?topic=\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "upgrade requested": request("GET /ping", "Connection: Upgrade", "Upgrade: websocket"),
}


# Go's HTTP library accepts these requests or has its own responses to them. nsqx parses HTTP more strictly, so that the
# end of a body is never ambiguous. It may reject these requests with an error status, and must then close.
MAY_BE_REJECTED = {
    "HTTP/1.2",
    "newlines without CR",
    "folded header",
    "unknown method",
    "lower case method",
    "the same content length twice",
    "length and chunked",
    "unknown transfer encoding",
    "bad chunk size",
    "chunk longer than its size",
    "body cut off",
    "MPUB body cut off",
    "binary MPUB body cut off",
    "bytes in the path",
    "bytes in the query",
}


@pytest.fixture(scope="module")
def pair(candidate: str) -> Iterator[tuple[Daemon, Daemon]]:
    daemons = Fleet()
    yield daemons.nsqd("go", *FLAGS), daemons.nsqd(candidate, *FLAGS)
    daemons.close()


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_both_daemons_give_the_same_responses(name: str, pair: tuple[Daemon, Daemon]) -> None:
    reference, ours = (converse(daemon, CONVERSATIONS[name]) for daemon in pair)
    if name in MAY_BE_REJECTED and ours != reference:
        assert ours in [[(status, "close")] for status in (400, 405, 501, 505)]
    else:
        assert ours == reference


def test_a_connection_stays_open_between_requests(pair: tuple[Daemon, Daemon]) -> None:
    """The daemon does not close the connection of a client that waits for each response."""
    for daemon in pair:
        with connect(daemon) as connection:
            for _ in range(3):
                connection.sendall(HELLO)
                assert connection.recv(4096).startswith(b"HTTP/1.1 200 OK\r\n")


def test_the_daemon_closes_the_connection_on_request(pair: tuple[Daemon, Daemon]) -> None:
    for daemon in pair:
        with connect(daemon) as connection:
            connection.sendall(request("GET /ping", "Connection: close"))
            assert read_to_end(connection).endswith(b"\r\n\r\nOK")


def converse(daemon: Daemon, data: bytes) -> list[Any]:
    """Send ``data``. Return status, headers and body of every response until the connection ends."""
    with connect(daemon) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return split_responses(read_to_end(connection))


def connect(daemon: Daemon) -> socket.socket:
    host, port = daemon.http_address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), SOCKET_TIMEOUT_S)


def read_to_end(connection: socket.socket) -> bytes:
    received = b""
    while True:
        try:
            data = connection.recv(65536)
        except ConnectionResetError:
            return received
        if not data:
            return received
        received += data


def split_responses(received: bytes) -> list[Any]:
    """Parse the responses in ``received``. For errors that come from the HTTP library, keep only the status."""
    responses: list[Any] = []
    while received:
        head, _, received = received.partition(b"\r\n\r\n")
        status_line, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        status = int(status_line.split()[1])
        length = int(headers.get("content-length", "0" if status == 100 else str(len(received))))
        body, received = received[:length], received[length:]
        if status == 413:
            # The daemon may read the rest of a body that is too large, or close the connection.
            return [*responses, (status_line, headers["content-type"], body)]
        if status >= 400 and "x-nsq-content-type" not in headers:
            responses.append((status, headers.get("connection")))
        else:
            responses.append((status_line, {name: headers[name] for name in SHOWN_HEADERS if name in headers}, body))
    return responses
