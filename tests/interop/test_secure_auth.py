"""Authorization with third-party clients: a grant, a refusal, an expired grant, and an auth server that is down.

The auth server is nsqx's. The broker is nsqx's and, where the rules are the same, also Go's.
"""

import os
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
from authserver import AuthServer
from clients.workload import EVERYTHING
from test_clients import client_report, node_client, python_client

from certificates import Authority, self_signed
from daemons import Daemon, Fleet, program_command, wait_until, write_metadata
from rawclient import OK, RawClient, auth, identify, pub, sub

SECRET = "open sesame & more"
WRONG = "wrong secret & more"
RIGHTS = f"""
ttl = {{ttl}}

[[token]]
secret = "{SECRET}"
identity = "worker"

[[token.authorization]]
topic = "^{{topic}}$"
channels = ["^ch$", "^$"]
permissions = ["subscribe", "publish"]
"""
TOOL_TIMEOUT_S = 40
CLIENTS = ("pynsq", "nsqjs")


class Rights:
    """The auth server and its configuration file."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "rights.toml"
        self.write()
        command = [*program_command("nsqx", "auth-server"), f"--config={self._path}", "--http-address=127.0.0.1:0"]
        self.server = Daemon(command, listeners=("HTTP",))

    def write(self, topic: str = "work", ttl: int = 60) -> None:
        # The file is replaced, not rewritten, so the server never reads a half-written file.
        fresh = self._path.with_suffix(".new")
        fresh.write_text(RIGHTS.format(topic=topic, ttl=ttl))
        os.replace(fresh, self._path)


@pytest.fixture
def rights(tmp_path: Path) -> Iterator[Rights]:
    made = Rights(tmp_path)
    yield made
    if made.server.running:
        made.server.close()
    assert not has_secret(made.server.log)


@pytest.fixture
def nsqd(fleet: Fleet, rights: Rights, tmp_path: Path) -> Iterator[Daemon]:
    daemon = start(fleet, "nsqx", rights, tmp_path)
    yield daemon
    assert not has_secret(daemon.log)


def start(fleet: Fleet, implementation: str, rights: Rights, tmp_path: Path, *flags: str) -> Daemon:
    data_path = tmp_path / "data"
    data_path.mkdir()
    write_metadata(data_path, {"work": ["ch"]})
    address = f"--auth-http-address={rights.server.http_address}"
    return fleet.nsqd(implementation, address, "--log-level=debug", *flags, data_path=data_path)


def has_secret(log: str) -> bool:
    """Return True if the log contains a secret, as plain text or URL-encoded."""
    starts = [" ".join(secret.split()[:2]) for secret in (SECRET, WRONG)]
    return any(spelling in log for start in starts for spelling in (start, start.replace(" ", "+"), quote(start)))


def program(client: str) -> list[str]:
    return node_client() if client == "nsqjs" else python_client(client)


@contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a client until the block ends. Its stdout and stderr are written to ``log``."""
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


# Clients with a grant


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_with_a_valid_secret_publishes_and_consumes(client: str, nsqd: Daemon, tmp_path: Path) -> None:
    command = [*program(client), nsqd.tcp_address, "work", "ch", f"auth_secret={SECRET}"]
    with client_report(command, tmp_path / "client.log") as report:
        assert report["finished"] == sorted(body.decode() for body in EVERYTHING)
        (consumer,) = nsqd.channel_stats("work", "ch")["clients"]
        assert (consumer["authed"], consumer["auth_identity"]) == (True, "worker")


@pytest.mark.parametrize("method", ["get", "post"])
def test_go_clients_with_a_valid_secret_publish_and_consume(
    method: str, fleet: Fleet, rights: Rights, tmp_path: Path
) -> None:
    nsqd = start(fleet, "nsqx", rights, tmp_path, f"--auth-http-request-method={method}")
    assert to_nsq(nsqd, SECRET).returncode == 0
    tail = [*program_command("go", "nsq_tail"), "--topic=work", "--channel=ch", "--n=1"]
    tail += [f"--nsqd-tcp-address={nsqd.tcp_address}", f"--consumer-opt=auth_secret,{SECRET}"]
    done = subprocess.run(tail, capture_output=True, timeout=TOOL_TIMEOUT_S)
    assert (done.returncode, done.stdout) == (0, b"hello\n")
    assert not has_secret(nsqd.log)


def to_nsq(nsqd: Daemon, secret: str) -> subprocess.CompletedProcess[bytes]:
    command = [*program_command("go", "to_nsq"), "--topic=work", f"--nsqd-tcp-address={nsqd.tcp_address}"]
    command.append(f"--producer-opt=auth_secret,{secret}")
    return subprocess.run(command, input=b"hello\n", capture_output=True, timeout=TOOL_TIMEOUT_S)


# Clients without a grant


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_with_a_wrong_secret_gets_e_auth_failed(client: str, nsqd: Daemon, tmp_path: Path) -> None:
    command = [*program(client), nsqd.tcp_address, "work", "ch", f"auth_secret={WRONG}"]
    with running(command, tmp_path / "client.log"):
        nsqd.wait_for_log(r"AUTH failed .*403")
        wait_until(
            lambda: "E_AUTH_FAILED" in (tmp_path / "client.log").read_text(), "the client has received the error"
        )
    assert nsqd.topic_stats("work")["message_count"] == 0


def test_go_clients_without_a_grant_get_an_error(nsqd: Daemon, rights: Rights) -> None:
    done = to_nsq(nsqd, WRONG)
    assert done.returncode != 0
    assert b"E_AUTH_FAILED" in done.stderr
    rights.write(topic="elsewhere")
    done = to_nsq(nsqd, SECRET)
    assert done.returncode != 0
    assert b"E_UNAUTHORIZED" in done.stderr
    assert nsqd.topic_stats("work")["message_count"] == 0


@pytest.mark.parametrize("client", CLIENTS)
def test_clients_get_e_auth_failed_while_the_auth_server_is_down(
    client: str, nsqd: Daemon, rights: Rights, tmp_path: Path
) -> None:
    rights.server.stop()
    command = [*program(client), nsqd.tcp_address, "work", "ch", f"auth_secret={SECRET}"]
    with running(command, tmp_path / "client.log"):
        wait_until(
            lambda: "E_AUTH_FAILED" in (tmp_path / "client.log").read_text(), "the client has received the error"
        )
    assert b"E_AUTH_FAILED" in to_nsq(nsqd, SECRET).stderr
    assert nsqd.topic_stats("work")["message_count"] == 0


# Expired grants


def test_a_go_subscriber_whose_grant_expires_is_disconnected(nsqd: Daemon, rights: Rights, tmp_path: Path) -> None:
    rights.write(ttl=1)
    tail = [*program_command("go", "nsq_tail"), "--topic=work", "--channel=ch"]
    tail += [f"--nsqd-tcp-address={nsqd.tcp_address}", f"--consumer-opt=auth_secret,{SECRET}"]
    with running(tail, tmp_path / "tail.log"):
        wait_until(lambda: nsqd.channel_stats("work", "ch")["client_count"] == 1, "the client has subscribed")
        rights.write(topic="elsewhere", ttl=1)
        wait_until(lambda: "E_UNAUTHORIZED" in (tmp_path / "tail.log").read_text(), "the client has received the error")
        wait_until(lambda: nsqd.channel_stats("work", "ch")["client_count"] == 0, "the client is disconnected")


def test_a_subscriber_stays_connected_while_the_auth_server_is_down(nsqd: Daemon, rights: Rights) -> None:
    """A grant that cannot be confirmed is not a refusal. A PUB with the expired grant fails at once."""
    rights.write(ttl=1)
    with RawClient(nsqd.tcp_address) as client:
        client.send(auth(SECRET.encode()) + sub("work", "ch"))
        client.read_frame()
        assert client.read_frame() == OK
        rights.server.stop()
        nsqd.wait_for_log("the right to SUB cannot be confirmed")
        client.send(b"NOP\nRDY 1\n" + pub("work", b"x"))
        assert client.read_answer().data == b"E_AUTH_FAILED AUTH failed"


@pytest.mark.parametrize("implementation", ["go", "nsqx"])
def test_a_publish_fails_after_the_grant_has_expired(
    implementation: str, fleet: Fleet, rights: Rights, tmp_path: Path
) -> None:
    rights.write(ttl=1)
    nsqd = start(fleet, implementation, rights, tmp_path)
    with RawClient(nsqd.tcp_address) as client:
        client.auth(SECRET.encode())
        assert client.pub("work", b"x") == OK
        rights.write(topic="elsewhere", ttl=1)

        def refusal() -> bytes | None:
            answer = client.pub("work", b"x")
            return None if answer == OK else answer.data

        assert wait_until(refusal, "the grant has expired") == b'E_UNAUTHORIZED AUTH failed for PUB on "work" ""'


# The request to the auth server


@pytest.mark.parametrize("implementation", ["go", "nsqx"])
@pytest.mark.parametrize("policy", ["require", "require-verify"])
def test_the_auth_server_gets_the_common_name_of_the_client_certificate(
    implementation: str, policy: str, fleet: Fleet, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """With the policy ``require`` the certificate may be self-signed."""
    if policy == "require" and implementation == "nsqx":
        pytest.importorskip("OpenSSL", reason="pyOpenSSL missing: pip install pyopenssl")
    authority = Authority(tmp_path)
    server = authority.sign("server")
    mine = self_signed(tmp_path, "somebody") if policy == "require" else authority.sign("somebody")
    auth_server = AuthServer()
    request.addfinalizer(auth_server.close)
    nsqd = fleet.nsqd(
        implementation,
        f"--tls-cert={server.cert}",
        f"--tls-key={server.key}",
        f"--tls-root-ca-file={authority.cert}",
        f"--tls-client-auth-policy={policy}",
        f"--auth-http-address={auth_server.address}",
    )
    context = ssl.create_default_context(cafile=authority.cert)
    context.load_cert_chain(mine.cert, mine.key)
    with RawClient(nsqd.tcp_address) as client:
        client.send(identify(feature_negotiation=True, tls_v1=True))
        client.read_frame()
        client.start_tls(context)
        assert client.read_frame() == OK
        assert b'"permission_count":1' in client.auth(b"all").data
    ((_, _, query),) = auth_server.requests
    assert dict(query) == {
        "common_name": ["somebody"],
        "remote_ip": ["127.0.0.1"],
        "secret": ["all"],
        "tls": ["true"],
    }
