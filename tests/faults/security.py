"""Scenarios of access and bounds for the table (rows 24 and 26 to 33).

What they show is tested in full elsewhere: row 24 in test_partition.py; 26 in tests/integration/test_secure_tls.py;
27, 28, 30 and 33 in tests/integration/test_access.py and test_secure_grants.py, and in
tests/interop/test_secure_auth.py; 29 in tests/integration/test_http_server.py (test_malformed_framing_is_rejected).
"""

import http.client
import socket
import ssl
from pathlib import Path

import pytest
from stage import CHANNEL, TOPIC, Outcome, Stage

from certificates import Authority, Certificate, self_signed
from daemons import Daemon, DaemonFailed, free_port, program_command
from rawclient import OK, ConnectionEnded, RawClient, auth, pub, sub

SECRET = "open sesame"
RIGHTS = """
ttl = 1

[[token]]
secret = "open sesame"
identity = "billing"

[[token.authorization]]
topic = "pay"
channels = [".*"]
permissions = ["subscribe", "publish"]
"""
_REQUEST = b"POST /pub?topic=t HTTP/1.1\r\nHost: localhost\r\n"
FRAMINGS = {
    "bare LF": b"GET /ping HTTP/1.1\nHost: localhost\nConnection: close\n\n",
    "obs-fold": b"GET /ping HTTP/1.1\r\nHost: localhost\r\nA: b\r\n c\r\nConnection: close\r\n\r\n",
    "two lengths": _REQUEST + b"Content-Length: 1\r\nContent-Length: 2\r\nConnection: close\r\n\r\nab",
    "space before the colon": b"GET /ping HTTP/1.1\r\nHost : x\r\nConnection: close\r\n\r\n",
    "two hosts": b"GET /ping HTTP/1.1\r\nHost: localhost\r\nHost: y\r\nConnection: close\r\n\r\n",
    "length of +1": _REQUEST + b"Content-Length: +1\r\nConnection: close\r\n\r\na",
    "chunked twice": _REQUEST + b"Transfer-Encoding: chunked, chunked\r\nConnection: close\r\n\r\n1\r\na\r\n0\r\n\r\n",
    "length and chunks": _REQUEST
    + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n1\r\na\r\n0\r\n\r\n",
}


def without_lookupd(stage: Stage) -> Outcome:
    """Row 24: publish and consume while no nsqlookupd answers."""
    daemon = stage.nsqd(f"--lookupd-tcp-address=127.0.0.1:{free_port()}")
    with RawClient(daemon.tcp_address) as client:
        published = client.pub(TOPIC, b"x") == OK
        client.send(sub(TOPIC, CHANNEL) + b"RDY 1\n")
        delivered = client.read_answer() == OK and client.read_message().body == b"x"
    return Outcome(seen={"published": published, "delivered": delivered})


def revoked(stage: Stage) -> Outcome:
    """Row 27: a subscriber loses its right, and the secret of another is withdrawn; grants last one second."""
    rights, server = _auth_server(stage)
    daemon = stage.nsqd(f"--auth-http-address={server.http_address}", "--log-level=debug")
    changes = {"right": ('topic = "pay"', 'topic = "elsewhere"'), "secret": (SECRET, "something else")}
    return Outcome(seen={f"{name} gone": _loses(daemon, rights, change) for name, change in changes.items()})


def _loses(daemon: Daemon, rights: Path, change: tuple[str, str]) -> str:
    rights.write_text(RIGHTS)
    with RawClient(daemon.tcp_address) as client:
        client.send(auth(SECRET.encode()) + sub("pay", CHANNEL) + b"RDY 1\n")
        client.read_answer(), client.read_answer()
        rights.write_text(RIGHTS.replace(*change))
        try:
            return client.read_answer(4.0).data.decode()
        except TimeoutError:
            return "keeps its subscription"
        except ConnectionEnded:
            return "closed"


def secrets_and_patterns(stage: Stage) -> Outcome:
    """Row 33: is a secret logged; does the right to `pay` include `payroll`, as in NSQ; does a pattern hang?"""
    rights, server = _auth_server(stage)
    daemon = stage.nsqd(f"--auth-http-address={server.http_address}", "--log-level=debug")
    with RawClient(daemon.tcp_address) as client:
        client.send(auth(SECRET.encode()) + pub("payroll", b"x"))
        client.read_answer()
        answer = client.read_answer()
    with RawClient(daemon.tcp_address) as client:
        client.send(auth(b"wrong secret"))
        client.read_answer()
    rights.write_text(RIGHTS.replace('topic = "pay"', 'topic = "^(a+)+$"'))
    with RawClient(daemon.tcp_address) as client:
        client.send(auth(SECRET.encode()) + pub("a" * 63 + "b", b"x"))
        client.read_answer()
        slow_pattern = client.read_answer().data.startswith(b"E_UNAUTHORIZED")
    server.stop()
    with RawClient(daemon.tcp_address) as client:
        client.send(auth(SECRET.encode()))
        client.read_answer()
    leaked = any(secret in daemon.log for secret in (SECRET, SECRET.replace(" ", "+"), "wrong secret", "wrong+secret"))
    seen = {"secret in log": leaked, "payroll": answer.data.decode(), "slow pattern refused": slow_pattern}
    return Outcome(seen=seen)


def http_with_auth(stage: Stage) -> Outcome:
    """Row 28: HTTP without and with a token, on an nsqd that requires one."""
    _, server = _auth_server(stage)
    flags = [f"--auth-http-address={server.http_address}"]
    if stage.implementation == "nsqx":
        for group in ("publish", "read", "admin"):
            (stage.directory / group).write_text("token\n")
            flags.append(f"--http-{group}-token-file={stage.directory / group}")
    daemon = stage.nsqd(*flags)
    targets = (("POST", "/pub?topic=t"), ("GET", "/stats"), ("POST", "/topic/create?topic=t"))
    right = {"Authorization": "Bearer token"}
    seen = {
        f"{target}{', token' if headers else ''}": daemon.request(method, target, b"x", headers).status
        for method, target in targets
        for headers in ({}, right)
    }
    return Outcome(seen=seen)


def ambiguous_framing(stage: Stage) -> Outcome:
    """Row 29: the answers to requests that two parsers would read in two ways."""
    daemon = stage.nsqd()
    return Outcome(seen={name: _status(daemon, data) for name, data in FRAMINGS.items()})


def large_backlog(stage: Stage) -> Outcome:
    """Row 30: how much of 20 MB of messages stays in memory, with a limit of 1 MB if there is one."""
    daemon = stage.nsqd(*(["--mem-queue-bytes=1000000"] if stage.implementation == "nsqx" else []))
    with RawClient(daemon.tcp_address) as client:
        for _ in range(20):
            assert client.mpub(TOPIC, [b"x" * 100_000] * 10) == OK
    entry = daemon.topic_stats(TOPIC)
    return Outcome(seen={"MB in memory": (entry["depth"] - entry["backend_depth"]) / 10})


def any_client_certificate(stage: Stage, policy: str = "require") -> Outcome:
    """Row 26: which clients are served over TCP and HTTPS under a policy, and whether nsqd logs a warning at start."""
    authority = Authority(stage.directory)
    server, good = authority.sign("server"), authority.sign("good")
    flags = [f"--tls-cert={server.cert}", f"--tls-key={server.key}", f"--tls-root-ca-file={authority.cert}"]
    try:
        daemon = stage.nsqd(*flags, f"--tls-client-auth-policy={policy}", "--tls-required=tcp-https")
    except DaemonFailed as failure:
        last_line = str(failure).strip().splitlines()[-1]
        if "needs pyOpenSSL" in last_line:
            pytest.skip("pyOpenSSL missing: pip install pyopenssl")
        return Outcome(seen={"refuses to start": last_line})
    clients = {"signed": good, "self-signed": self_signed(stage.directory, "self"), "none": None}
    served = [name for name, certificate in clients.items() if _is_served(daemon, authority, certificate)]
    return Outcome(seen={"served": served, "warns": "WARNING: TLS: " in daemon.log})


def _is_served(daemon: Daemon, authority: Authority, certificate: Certificate | None) -> bool:
    context = ssl.create_default_context(cafile=authority.cert)
    if certificate is not None:
        context.load_cert_chain(certificate.cert, certificate.key)
    host, _, port = daemon.addresses["HTTPS"].rpartition(":")
    connection = http.client.HTTPSConnection(host, int(port), timeout=20, context=context)
    try:
        with RawClient(daemon.tcp_address) as client:
            client.identify(feature_negotiation=True, tls_v1=True)
            client.start_tls(context)
            over_tcp = client.read_answer() == OK and client.pub(TOPIC, b"x") == OK
        connection.request("GET", "/ping")
        return over_tcp and connection.getresponse().status == 200
    except (ssl.SSLError, ConnectionEnded, ConnectionError):
        return False
    finally:
        connection.close()


def _auth_server(stage: Stage) -> tuple[Path, Daemon]:
    rights = stage.directory / "rights.toml"
    rights.write_text(RIGHTS)
    command = [*program_command("nsqx", "auth-server"), f"--config={rights}", "--http-address=127.0.0.1:0"]
    return rights, stage.cleanup.enter_context(Daemon(command, listeners=("HTTP",)))


def _status(daemon: Daemon, data: bytes) -> int:
    host, _, port = daemon.http_address.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as client:
        client.sendall(data)
        answer = b""
        while len(answer) < 12 and (received := client.recv(4096)):
            answer += received
    return int(answer[9:12] or 0)
