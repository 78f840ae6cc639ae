"""Scenarios of access and bounds for the table (rows 24 and 26 to 33).

What they show is tested in full elsewhere: rows 24 in test_partition.py; 27, 28, 30 and 33 in
tests/integration/test_access.py; 29 in tests/integration/test_http_server.py (test_framing).
"""

import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from stage import CHANNEL, TOPIC, Outcome, Stage

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
_REQUEST = b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\n"
FRAMINGS = {
    "bare LF": b"GET /ping HTTP/1.1\nHost: x\nConnection: close\n\n",
    "obs-fold": b"GET /ping HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\nConnection: close\r\n\r\n",
    "two lengths": _REQUEST + b"Content-Length: 1\r\nContent-Length: 2\r\nConnection: close\r\n\r\nab",
    "length and chunks": _REQUEST
    + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n1\r\na\r\n0\r\n\r\n",
}


def without_lookupd(stage: Stage) -> Outcome:
    """Row 24: publishing and consuming while no nsqlookupd answers."""
    daemon = stage.nsqd(f"--lookupd-tcp-address=127.0.0.1:{free_port()}")
    with RawClient(daemon.tcp_address) as client:
        published = client.pub(TOPIC, b"x") == OK
        client.send(sub(TOPIC, CHANNEL) + b"RDY 1\n")
        delivered = client.read_answer() == OK and client.read_message().body == b"x"
    return Outcome(seen={"published": published, "delivered": delivered})


def revoked(stage: Stage) -> Outcome:
    """Row 27: a subscriber loses its right; its grant is good for one second."""
    rights, server = _auth_server(stage)
    daemon = stage.nsqd(f"--auth-http-address={server.http_address}", "--log-level=debug")
    with RawClient(daemon.tcp_address) as client:
        client.send(auth(SECRET.encode()) + sub("pay", CHANNEL) + b"RDY 1\n")
        client.read_answer(), client.read_answer()
        rights.write_text(RIGHTS.replace('topic = "pay"', 'topic = "elsewhere"'))
        try:
            answer = client.read_answer(4.0).data.decode()
        except TimeoutError:
            answer = "keeps its subscription"
        except ConnectionEnded:
            answer = "closed"
    return Outcome(seen={"revoked": answer})


def secrets_and_patterns(stage: Stage) -> Outcome:
    """Row 33: whether the secret is in the log, and whether the right to `pay` is one to `payroll`, as NSQ has it."""
    _, server = _auth_server(stage)
    daemon = stage.nsqd(f"--auth-http-address={server.http_address}", "--log-level=debug")
    with RawClient(daemon.tcp_address) as client:
        client.send(auth(SECRET.encode()) + pub("payroll", b"x"))
        client.read_answer()
        answer = client.read_answer()
    with RawClient(daemon.tcp_address) as client:
        client.send(auth(b"wrong secret"))
        client.read_answer()
    server.stop()
    with RawClient(daemon.tcp_address) as client:
        client.send(auth(SECRET.encode()))
        client.read_answer()
    leaked = any(secret in daemon.log for secret in (SECRET, SECRET.replace(" ", "+"), "wrong secret", "wrong+secret"))
    return Outcome(seen={"secret in log": leaked, "payroll": answer.data.decode()})


def http_with_auth(stage: Stage) -> Outcome:
    """Row 28: HTTP without a token, where nsqd was told to want one."""
    _, server = _auth_server(stage)
    flags = [f"--auth-http-address={server.http_address}"]
    if stage.implementation == "nsqx":
        for group in ("publish", "read", "admin"):
            (stage.directory / group).write_text("token\n")
            flags.append(f"--http-{group}-token-file={stage.directory / group}")
    daemon = stage.nsqd(*flags)
    targets = (("POST", "/pub?topic=t"), ("GET", "/stats"), ("POST", "/topic/create?topic=t"))
    return Outcome(seen={target: daemon.request(method, target, b"x").status for method, target in targets})


def ambiguous_framing(stage: Stage) -> Outcome:
    """Row 29: the answers to requests that two readers would understand in two ways."""
    daemon = stage.nsqd()
    return Outcome(seen={name: _status(daemon, data) for name, data in FRAMINGS.items()})


def large_backlog(stage: Stage) -> Outcome:
    """Row 30: how much of 20 MB of messages stays in memory; with a bound of 1 MB, where there can be one."""
    daemon = stage.nsqd(*(["--mem-queue-bytes=1000000"] if stage.implementation == "nsqx" else []))
    with RawClient(daemon.tcp_address) as client:
        for _ in range(20):
            assert client.mpub(TOPIC, [b"x" * 100_000] * 10) == OK
    entry = daemon.topic_stats(TOPIC)
    return Outcome(seen={"MB in memory": (entry["depth"] - entry["backend_depth"]) / 10})


def any_client_certificate(stage: Stage) -> Outcome:
    """Row 26: does nsqd start with --tls-client-auth-policy=require, and does it warn?"""
    cert, key = stage.directory / "cert.pem", stage.directory / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=localhost", "-keyout", str(key), "-out", str(cert)]
    if shutil.which("openssl") is None:
        pytest.skip("openssl missing: install it to make test certificates")
    subprocess.run(command, check=True, capture_output=True)
    try:
        daemon = stage.nsqd(f"--tls-cert={cert}", f"--tls-key={key}", "--tls-client-auth-policy=require")
    except DaemonFailed as failure:
        return Outcome(seen={"refuses": str(failure).strip().splitlines()[-1]})
    return Outcome(seen={"starts": True, "warns": "WARNING" in daemon.log})


def _auth_server(stage: Stage) -> tuple[Path, Daemon]:
    rights = stage.directory / "rights.toml"
    rights.write_text(RIGHTS)
    command = [*program_command("nsqx", "auth_server"), f"--config={rights}", "--http-address=127.0.0.1:0"]
    return rights, stage.cleanup.enter_context(Daemon(command, listeners=("HTTP",)))


def _status(daemon: Daemon, data: bytes) -> int:
    host, _, port = daemon.http_address.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as client:
        client.sendall(data)
        answer = b""
        while len(answer) < 12 and (received := client.recv(4096)):
            answer += received
    return int(answer[9:12] or 0)
