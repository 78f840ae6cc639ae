"""Access control: nsqx's auth server with a real nsqd, HTTP tokens, client certificates and limits."""

import http.client
import json
import signal
import ssl
import subprocess
from pathlib import Path

import pytest

from daemons import Daemon, DaemonFailed, Fleet, program_command, wait_until
from rawclient import RawClient, auth, mpub, pub, sub

RIGHTS = """
ttl = {ttl}

[[token]]
secret = "letmein"
identity = "billing"

[[token.authorization]]
topic = "^invoices$"
channels = ["^billing$", "^$"]
permissions = ["subscribe", "publish"]
"""


@pytest.fixture
def rights(tmp_path: Path) -> Path:
    path = tmp_path / "rights.toml"
    path.write_text(RIGHTS.format(ttl=60))
    return path


@pytest.fixture
def auth_server(rights: Path):
    command = [*program_command("nsqx", "auth-server"), f"--config={rights}", "--http-address=127.0.0.1:0"]
    daemon = Daemon(command, listeners=("HTTP",))
    yield daemon
    daemon.close()


def frames(client: RawClient, *commands: bytes) -> list[str]:
    client.send(b"".join(commands))
    return [client.read_frame().data.decode() for _ in commands]


@pytest.mark.parametrize("method", ["get", "post"])
def test_the_auth_server_grants_a_topic_to_a_secret(fleet: Fleet, auth_server: Daemon, method: str) -> None:
    nsqd = fleet.nsqd("nsqx", f"--auth-http-address={auth_server.http_address}", f"--auth-http-request-method={method}")
    with RawClient(nsqd.tcp_address) as client:
        answer, published = frames(client, auth(b"letmein"), pub("invoices", b"1"))
        assert json.loads(answer) == {"identity": "billing", "identity_url": "", "permission_count": 1}
        assert published == "OK"
        assert frames(client, sub("invoices", "other")) == ['E_UNAUTHORIZED AUTH failed for SUB on "invoices" "other"']
    with RawClient(nsqd.tcp_address) as client:
        assert frames(client, auth(b"guess")) == ["E_AUTH_FAILED AUTH failed"]
    with RawClient(nsqd.tcp_address) as client:
        assert frames(client, pub("invoices", b"1")) == ["E_AUTH_FIRST AUTH required before PUB"]
    assert "letmein" not in nsqd.log + auth_server.log
    assert "guess" not in nsqd.log + auth_server.log


def test_a_subscriber_whose_grant_is_withdrawn_is_disconnected(fleet: Fleet, auth_server: Daemon, rights: Path) -> None:
    rights.write_text(RIGHTS.format(ttl=1))
    nsqd = fleet.nsqd("nsqx", f"--auth-http-address={auth_server.http_address}")
    with RawClient(nsqd.tcp_address) as client:
        assert frames(client, auth(b"letmein"), sub("invoices", "billing"))[1] == "OK"
        rights.write_text(RIGHTS.format(ttl=1).replace("^billing$", "^elsewhere$"))
        assert client.read_frame().data == b'E_UNAUTHORIZED AUTH failed for SUB on "invoices" "billing"'


def test_a_subscriber_whose_secret_is_withdrawn_is_disconnected(
    fleet: Fleet, auth_server: Daemon, rights: Path
) -> None:
    rights.write_text(RIGHTS.format(ttl=1))
    nsqd = fleet.nsqd("nsqx", f"--auth-http-address={auth_server.http_address}")
    with RawClient(nsqd.tcp_address) as client:
        assert frames(client, auth(b"letmein"), sub("invoices", "billing"))[1] == "OK"
        rights.write_text(RIGHTS.format(ttl=1).replace("letmein", "another"))
        assert client.read_frame().data == b"E_AUTH_FAILED AUTH failed"
        assert client.read_until_closed() == []
    assert "letmein" not in nsqd.log + auth_server.log


def test_auth_fails_while_the_auth_server_is_down(fleet: Fleet, auth_server: Daemon) -> None:
    nsqd = fleet.nsqd("nsqx", f"--auth-http-address={auth_server.http_address}")
    auth_server.stop()
    with RawClient(nsqd.tcp_address) as client:
        assert frames(client, auth(b"letmein")) == ["E_AUTH_FAILED AUTH failed"]
    assert "letmein" not in nsqd.log


@pytest.mark.parametrize(
    ("content", "reason"),
    [("ttl = ", "is not a valid file of tokens"), ('[[token]]\nidentity = "x"', "is not a valid file of tokens")],
)
def test_an_invalid_file_of_tokens_fails_at_start(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(content)
    command = [*program_command("nsqx", "auth-server"), "--config", str(path), "--http-address=127.0.0.1:0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert ended.returncode == 1
    assert reason in ended.stderr
    assert "Traceback" not in ended.stderr


# HTTP


@pytest.fixture
def secured_nsqd(fleet: Fleet, tmp_path: Path) -> Daemon:
    for group in ("publish", "read", "admin"):
        (tmp_path / group).write_text(f"{group}-token\n\nspare-{group}-token\n")
    return fleet.nsqd(
        "nsqx", *(f"--http-{group}-token-file={tmp_path / group}" for group in ("publish", "read", "admin"))
    )


def status(daemon: Daemon, method: str, path: str, token: str | None = None) -> int:
    host, _, port = daemon.http_address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        connection.request(method, path, b"body" if method == "POST" else None, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("method", "path", "group"),
    [
        ("POST", "/pub?topic=t", "publish"),
        ("POST", "/mpub?topic=t", "publish"),
        ("GET", "/log/offsets", "read"),
        ("GET", "/stats", "read"),
        ("GET", "/info", "read"),
        ("GET", "/metrics", "read"),
        ("GET", "/config/log_level", "read"),
        ("POST", "/topic/create?topic=t", "admin"),
        ("POST", "/debug/freememory", "admin"),
    ],
)
def test_each_group_of_routes_accepts_its_tokens(secured_nsqd: Daemon, method: str, path: str, group: str) -> None:
    assert status(secured_nsqd, method, path) == 401
    assert status(secured_nsqd, method, path, "guess") == 401
    assert status(secured_nsqd, method, path, f"{group}-token") == 200
    assert status(secured_nsqd, method, path, f"spare-{group}-token") == 200
    assert status(secured_nsqd, method, path, "admin-token") == 200
    other = "read" if group != "read" else "publish"
    assert status(secured_nsqd, method, path, f"{other}-token") == 401


def test_ping_needs_no_token(secured_nsqd: Daemon) -> None:
    assert status(secured_nsqd, "GET", "/ping") == 200


@pytest.mark.parametrize("content", [None, "\n \n"])
def test_a_missing_or_empty_token_file_fails_at_start(fleet: Fleet, tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "tokens"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DaemonFailed, match="token"):
        fleet.nsqd("nsqx", f"--http-admin-token-file={path}")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a certificate authority and the certificates of a server and a client."""
    directory = tmp_path_factory.mktemp("authority")

    def openssl(*arguments: str) -> None:
        try:
            subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=directory)
        except FileNotFoundError:
            pytest.skip("openssl missing: install it to make test certificates")

    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl("req", "-x509", *new_key, "-days", "2", "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem")
    (directory / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
    for name in ("server", "client"):
        openssl("req", *new_key, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        signing = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names"]
        openssl("x509", "-req", "-in", f"{name}.csr", *signing, "-out", f"{name}.pem")
    return directory


def https_status(daemon: Daemon, authority: Path, path: str, *, with_certificate: bool) -> int:
    context = ssl.create_default_context(cafile=str(authority / "ca.pem"))
    if with_certificate:
        context.load_cert_chain(str(authority / "client.pem"), str(authority / "client.key"))
    connection = http.client.HTTPSConnection(
        "127.0.0.1", int(daemon.wait_for_log(r"HTTPS: listening on \S+:(\d+)")[1]), timeout=20, context=context
    )
    try:
        connection.request("POST" if path.startswith("/topic") else "GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_group_of_routes_requires_a_client_certificate(fleet: Fleet, authority: Path) -> None:
    flags = [f"--tls-cert={authority / 'server.pem'}", f"--tls-key={authority / 'server.key'}"]
    flags += [f"--tls-root-ca-file={authority / 'ca.pem'}", "--http-client-cert-group=admin"]
    nsqd = fleet.nsqd("nsqx", *flags)
    assert https_status(nsqd, authority, "/topic/create?topic=t", with_certificate=False) == 401
    assert https_status(nsqd, authority, "/topic/create?topic=t", with_certificate=True) == 200
    assert https_status(nsqd, authority, "/stats", with_certificate=False) == 200
    assert status(nsqd, "POST", "/topic/create?topic=t") == 403  # plain HTTP has no certificate: TLS_REQUIRED


# Limits


def test_connections_of_one_address_are_limited(fleet: Fleet) -> None:
    nsqd = fleet.nsqd("nsqx", "--max-connections-per-ip=3")
    clients = [RawClient(nsqd.tcp_address) for _ in range(3)]
    for client in clients:
        assert frames(client, pub("t", b"x")) == ["OK"]
    with RawClient(nsqd.tcp_address) as refused:
        assert refused.read_until_closed() == []
    clients.pop().close()
    wait_until(lambda: len(nsqd.stats()["producers"]) == 2, "the third client is disconnected")
    with RawClient(nsqd.tcp_address) as client:
        assert frames(client, pub("t", b"x")) == ["OK"]
    for client in clients:
        assert frames(client, pub("t", b"x")) == ["OK"]
        client.close()


def test_the_memory_queue_is_bounded_in_bytes(fleet: Fleet) -> None:
    nsqd = fleet.nsqd("nsqx", "--store=classic", "--mem-queue-bytes=1000")
    nsqd.post("/topic/create", topic="t")
    nsqd.post("/channel/create", topic="t", channel="c")
    with RawClient(nsqd.tcp_address) as client:
        assert frames(client, pub("t", b"x" * 600), mpub("t", [b"y" * 300, b"z" * 300, b"w"])) == ["OK", "OK"]
        channel = nsqd.channel_stats("t", "c")
        assert (channel["depth"], channel["backend_depth"]) == (4, 2)
        client.send(sub("t", "c") + b"RDY 10\n")
        assert client.read_frame().data == b"OK"
        bodies = sorted(client.read_frame().data[26:] for _ in range(4))
    assert bodies == [b"w", b"x" * 600, b"y" * 300, b"z" * 300]


# nsqlookupd


def test_nsqd_connects_to_nsqlookupd_with_tls(fleet: Fleet, authority: Path) -> None:
    lookupd = fleet.nsqlookupd(
        "nsqx", f"--tls-cert={authority / 'server.pem'}", f"--tls-key={authority / 'server.key'}"
    )
    trust = f"--tls-root-ca-file={authority / 'ca.pem'}"
    nsqd = fleet.nsqd("nsqx", f"--lookupd-tcp-address={lookupd.tcp_address}", "--lookupd-tls", trust)
    nsqd.post("/topic/create", topic="over_tls")

    def producers() -> list[dict[str, object]]:
        answer = lookupd.request("GET", "/lookup?topic=over_tls")
        return answer.json()["producers"] if answer.status == 200 else []

    assert wait_until(producers, "the topic is registered")[0]["tcp_port"] == nsqd.tcp_port
    without_trust = fleet.nsqd("nsqx", f"--lookupd-tcp-address={lookupd.tcp_address}", "--lookupd-tls")
    without_trust.wait_for_log(r"ERROR: LOOKUPD\(.*certificate verify failed")


def test_nsqlookupd_requires_a_token(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "admin").write_text("admin-token")
    lookupd = fleet.nsqlookupd("nsqx", f"--http-admin-token-file={tmp_path / 'admin'}")
    assert status(lookupd, "POST", "/topic/create?topic=t") == 401
    assert status(lookupd, "POST", "/topic/create?topic=t", "admin-token") == 200
    assert status(lookupd, "GET", "/topics") == 200


def test_nsqlookupd_requires_a_client_certificate(fleet: Fleet, authority: Path) -> None:
    pair = [f"--tls-cert={authority / 'server.pem'}", f"--tls-key={authority / 'server.key'}"]
    trust = f"--tls-root-ca-file={authority / 'ca.pem'}"
    lookupd = fleet.nsqlookupd("nsqx", *pair, trust, "--https-address=127.0.0.1:0", "--http-client-cert-group=admin")
    create = "/topic/create?topic=t"
    assert https_status(lookupd, authority, create, with_certificate=False) == 401
    assert https_status(lookupd, authority, create, with_certificate=True) == 200
    assert https_status(lookupd, authority, "/nodes", with_certificate=False) == 200
    assert status(lookupd, "POST", create) == 403  # plain HTTP has no certificate: TLS_REQUIRED
    lookupd.process.send_signal(signal.SIGHUP)
    assert https_status(lookupd, authority, "/nodes", with_certificate=False) == 200


@pytest.mark.parametrize(
    ("flag", "reason"),
    [
        ("--https-address=127.0.0.1:0", "--https-address needs --tls-cert"),
        ("--http-client-cert-group=admin", "--http-client-cert-group needs --https-address"),
        ("--tls-cert=cert.pem", "must be given together"),
    ],
)
def test_nsqlookupd_flags_that_need_another_flag_fail_alone(fleet: Fleet, flag: str, reason: str) -> None:
    with pytest.raises(DaemonFailed, match=reason):
        fleet.nsqlookupd("nsqx", flag)
