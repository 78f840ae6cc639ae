"""TLS to nsqd: accepted certificates and versions, and clients that try to stay unencrypted.

Go's nsqd runs the same tests where it has the same rules, which verifies the tests.
"""

import http.client
import importlib.util
import json
import os
import shutil
import signal
import socket
import ssl
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from certificates import Authority, Certificate, self_signed
from daemons import IMPLEMENTATIONS, Daemon, DaemonFailed, Fleet
from rawclient import MAGIC, OK, ConnectionEnded, Frame, RawClient, identify, pub

OPENSSL_MISSING = "pyOpenSSL missing: pip install pyopenssl"
REFUSED = (ssl.SSLError, ConnectionEnded, ConnectionError)


class People(NamedTuple):
    """The owners of certificates."""

    authority: Authority
    server: Certificate
    clients: dict[str, Certificate | None]


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> People:
    directory = tmp_path_factory.mktemp("people")
    authority, other = Authority(directory), Authority(directory, "other-authority")
    clients = {
        "good": authority.sign("good"),
        "expired": authority.sign("expired", days=-1),
        "other authority": other.sign("other"),
        "self-signed": self_signed(directory, "self"),
        "none": None,
    }
    return People(authority, authority.sign("server"), clients)


def flags_of(people: People, policy: str = "") -> list[str]:
    flags = [f"--tls-cert={people.server.cert}", f"--tls-key={people.server.key}"]
    flags.append(f"--tls-root-ca-file={people.authority.cert}")
    return [*flags, f"--tls-client-auth-policy={policy}"] if policy else flags


def nsqd_with(fleet: Fleet, implementation: str, people: People, policy: str = "", *more: str) -> Daemon:
    if implementation == "nsqx" and policy == "require" and importlib.util.find_spec("OpenSSL") is None:
        pytest.skip(OPENSSL_MISSING)
    return fleet.nsqd(implementation, *flags_of(people, policy), *more)


def context_of(people: People, certificate: Certificate | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=people.authority.cert)
    if certificate is not None:
        context.load_cert_chain(certificate.cert, certificate.key)
    return context


def context_of_version(people: People, version: ssl.TLSVersion) -> ssl.SSLContext:
    """Return the context of a client that supports only one version of TLS, even an old one."""
    context = context_of(people, people.clients["good"])
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = version
    return context


def answer_in_tls(nsqd: Daemon, context: ssl.SSLContext) -> Frame | None:
    """Return the answer to a PUB inside TLS; None if the handshake failed."""
    with RawClient(nsqd.tcp_address) as client:
        client.send(identify(feature_negotiation=True, tls_v1=True))
        assert json.loads(client.read_frame().data)["tls_v1"]
        try:
            client.start_tls(context)
            assert client.read_frame() == OK
            return client.pub("t", b"x")
        except REFUSED:
            return None


def https_status(nsqd: Daemon, context: ssl.SSLContext, method: str = "GET", path: str = "/ping") -> int | None:
    host, _, port = nsqd.addresses["HTTPS"].rpartition(":")
    connection = http.client.HTTPSConnection(host, int(port), timeout=20, context=context)
    try:
        connection.request(method, path)
        return connection.getresponse().status
    except (ssl.SSLError, ConnectionError, http.client.RemoteDisconnected):
        return None
    finally:
        connection.close()


def serves(nsqd: Daemon, people: People) -> bool:
    """True if the daemon still serves a correct client."""
    return "Traceback" not in nsqd.log and answer_in_tls(nsqd, context_of(people, people.clients["good"])) == OK


# Client certificates


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("policy", "accepted"),
    [
        ("", {"good", "expired", "other authority", "self-signed", "none"}),
        ("require", {"good", "expired", "other authority", "self-signed"}),
        ("require-verify", {"good"}),
    ],
)
def test_the_policy_decides_which_certificates_are_accepted(
    fleet: Fleet, people: People, implementation: str, policy: str, accepted: set[str]
) -> None:
    nsqd = nsqd_with(fleet, implementation, people, policy)
    contexts = {name: context_of(people, certificate) for name, certificate in people.clients.items()}
    assert {name for name, context in contexts.items() if answer_in_tls(nsqd, context) == OK} == accepted
    assert {name for name, context in contexts.items() if https_status(nsqd, context) == 200} == accepted
    assert serves(nsqd, people)
    if implementation == "nsqx":
        assert nsqd.log.count("TLS handshake - ") == len(contexts) - len(accepted)


@pytest.mark.parametrize("policy", ["require", "require-verify"])
def test_a_certificate_without_its_key_is_rejected(fleet: Fleet, people: People, policy: str) -> None:
    """A client sends a valid certificate but cannot sign with its key."""
    nsqd = nsqd_with(fleet, "nsqx", people, policy)
    context = context_of(people, people.clients["good"])
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # the signature is not encrypted in this version
    host, _, port = nsqd.tcp_address.rpartition(":")
    with socket.create_connection((host, int(port)), 20) as client:
        client.sendall(MAGIC + identify(feature_negotiation=True, tls_v1=True))
        assert b'"tls_v1":true' in client.recv(65536)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        with pytest.raises(ssl.SSLError, match="DECRYPT_ERROR"):
            shake_hands(tls, lambda: incoming.write(client.recv(65536)), lambda: client.sendall(spoil(outgoing.read())))
    assert serves(nsqd, people)


def shake_hands(tls: ssl.SSLObject, receive: Callable[[], object], send: Callable[[], object]) -> None:
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            send()
            receive()
        else:
            return


def spoil(flight: bytes) -> bytes:
    """Return the records of ``flight`` with an invalid signature in CertificateVerify."""
    records = bytearray()
    while flight:
        size = 5 + int.from_bytes(flight[3:5], "big")
        record, flight = bytearray(flight[:size]), flight[size:]
        if record[0] == 22 and record[5] == 15:  # a handshake record that starts with CertificateVerify
            record[-1] ^= 1
        records += record
    return bytes(records)


@pytest.mark.parametrize("policy", ["", "require", "require-verify"])
def test_a_group_of_routes_needs_a_verified_certificate(fleet: Fleet, people: People, policy: str) -> None:
    nsqd = nsqd_with(fleet, "nsqx", people, policy, "--http-client-cert-group=admin")
    create = ("POST", "/topic/create?topic=t")
    assert https_status(nsqd, context_of(people, people.clients["good"]), *create) == 200
    stranger = https_status(nsqd, context_of(people, people.clients["self-signed"]), *create)
    assert stranger == (401 if policy == "require" else None)
    assert https_status(nsqd, context_of(people), *create) == (None if policy else 401)


def test_the_require_policy_needs_pyopenssl(fleet: Fleet, people: People, tmp_path: Path) -> None:
    (tmp_path / "OpenSSL.py").write_text("raise ImportError")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    with pytest.raises(DaemonFailed, match="needs pyOpenSSL: pip install pyopenssl, or use require-verify") as failure:
        fleet.nsqd("nsqx", *flags_of(people, "require"), env={"PYTHONPATH": path})
    assert "Traceback" not in str(failure.value)


@pytest.mark.parametrize("policy", ["", "require"])
def test_large_messages_pass_in_both_directions(fleet: Fleet, people: People, policy: str) -> None:
    """Messages of many records: published, consumed, and over HTTPS."""
    nsqd = nsqd_with(fleet, "nsqx", people, policy)
    context = context_of(people, people.clients["good"])
    bodies = [bytes([number]) * 1_000_000 for number in range(4)]
    with RawClient(nsqd.tcp_address) as client:
        client.send(identify(feature_negotiation=True, tls_v1=True))
        client.read_frame()
        client.start_tls(context)
        assert client.read_frame() == OK
        assert client.mpub("t", bodies) == OK
        assert client.sub("t", "c") == OK
        client.rdy(10)
        assert [client.read_message().body for _ in bodies] == bodies
    host, _, port = nsqd.addresses["HTTPS"].rpartition(":")
    connection = http.client.HTTPSConnection(host, int(port), timeout=20, context=context)
    for _ in range(3):
        connection.request("POST", "/pub?topic=https", bodies[3])
        assert connection.getresponse().read() == b"OK"
        connection.request("GET", "/stats?format=json&topic=https")
        topics = json.loads(connection.getresponse().read())["topics"]
    connection.close()
    assert topics[0]["message_bytes"] == 3_000_000


def test_the_require_policy_logs_a_warning(fleet: Fleet, people: People) -> None:
    nsqd = nsqd_with(fleet, "nsqx", people, "require")
    assert "WARNING: TLS: --tls-client-auth-policy=require takes any client certificate" in nsqd.log
    assert "WARNING" not in nsqd_with(fleet, "nsqx", people, "require-verify").log


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("policy", ["require", "require-verify"])
def test_stats_show_the_tls_parameters(fleet: Fleet, people: People, implementation: str, policy: str) -> None:
    nsqd = nsqd_with(fleet, implementation, people, policy, "--tls-required=tcp-https")
    context = context_of(people, people.clients["good"])
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    with RawClient(nsqd.tcp_address) as client:
        client.send(identify(feature_negotiation=True, tls_v1=True))
        client.read_frame()
        client.start_tls(context)
        assert client.read_frame() == OK
        assert client.pub("t", b"x") == OK
        (producer,) = nsqd.stats()["producers"]
    shown = {key: value for key, value in producer.items() if key.startswith("tls")}
    assert shown == {
        "tls": True,
        "tls_version": "TLS1.2",
        "tls_cipher_suite": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        "tls_negotiated_protocol": "",
        "tls_negotiated_protocol_is_mutual": True,
    }


@pytest.mark.parametrize("policy", ["", "require"])
def test_sighup_loads_a_new_certificate(fleet: Fleet, people: People, tmp_path: Path, policy: str) -> None:
    other = self_signed(tmp_path, "other-server")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    shutil.copy(people.server.cert, cert)
    shutil.copy(people.server.key, key)
    nsqd = nsqd_with(fleet, "nsqx", people, policy, f"--tls-cert={cert}", f"--tls-key={key}")
    mine = people.clients["good"]
    trusts_other = ssl.create_default_context(cafile=other.cert)
    assert mine is not None
    trusts_other.load_cert_chain(mine.cert, mine.key)
    assert https_status(nsqd, context_of(people, mine)) == 200

    shutil.copy(other.cert, cert)  # the key is still the old one: a mismatch
    nsqd.process.send_signal(signal.SIGHUP)
    nsqd.wait_for_log("keeping the old certificate")
    assert serves(nsqd, people)

    shutil.copy(other.key, key)
    nsqd.process.send_signal(signal.SIGHUP)
    nsqd.wait_for_log("certificate reloaded")
    assert answer_in_tls(nsqd, trusts_other) == OK
    assert https_status(nsqd, trusts_other) == 200
    assert answer_in_tls(nsqd, context_of(people, mine)) is None


@pytest.mark.parametrize(
    ("cert", "key", "ca", "reason"),
    [
        ("server", "good", "", "key values mismatch"),
        ("missing", "server", "", "No such file"),
        ("server", "server", "missing", "No such file"),
    ],
)
def test_invalid_files_stop_the_start(fleet: Fleet, people: People, cert: str, key: str, ca: str, reason: str) -> None:
    good = people.clients["good"]
    assert good is not None
    pairs = {"server": people.server, "good": good, "missing": Certificate("missing.pem", "missing.key")}
    flags = [f"--tls-cert={pairs[cert].cert}", f"--tls-key={pairs[key].key}", "--tls-client-auth-policy=require-verify"]
    with pytest.raises(DaemonFailed, match=reason) as failure:
        fleet.nsqd("nsqx", *flags, *([f"--tls-root-ca-file={pairs[ca].cert}"] if ca else []))
    assert "Traceback" not in str(failure.value)


# Versions

TLS_1_0, TLS_1_1, TLS_1_2, TLS_1_3 = (
    ssl.TLSVersion.TLSv1,
    ssl.TLSVersion.TLSv1_1,
    ssl.TLSVersion.TLSv1_2,
    ssl.TLSVersion.TLSv1_3,
)


@pytest.mark.parametrize(
    ("flag", "spoken"),
    [
        ("", {TLS_1_2, TLS_1_3}),
        ("--tls-min-version=tls1.0", {TLS_1_0, TLS_1_1, TLS_1_2, TLS_1_3}),
        ("--tls-min-version=tls1.1", {TLS_1_1, TLS_1_2, TLS_1_3}),
        ("--tls-min-version=tls1.3", {TLS_1_3}),
    ],
)
@pytest.mark.parametrize("policy", ["", "require"])
def test_the_minimum_version_is_enforced(
    fleet: Fleet, people: People, policy: str, flag: str, spoken: set[ssl.TLSVersion]
) -> None:
    nsqd = nsqd_with(fleet, "nsqx", people, policy, *filter(None, [flag]))
    contexts = {version: context_of_version(people, version) for version in (TLS_1_0, TLS_1_1, TLS_1_2, TLS_1_3)}
    assert {version for version, context in contexts.items() if answer_in_tls(nsqd, context) == OK} == spoken
    assert {version for version, context in contexts.items() if https_status(nsqd, context) == 200} == spoken
    assert "Traceback" not in nsqd.log


# Clients that do not use TLS

PLAIN_ATTEMPTS = {
    "no IDENTIFY": (b"", b"E_INVALID cannot PUB in current state (TLS required)"),
    "IDENTIFY without tls_v1": (identify(feature_negotiation=True), b"E_INVALID"),
    "tls_v1 false": (identify(feature_negotiation=True, tls_v1=False, snappy=True), b"E_INVALID"),
    "no feature negotiation": (identify(tls_v1=True), b"E_INVALID"),
}


@pytest.mark.parametrize("attempt", PLAIN_ATTEMPTS)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_clients_without_tls_are_rejected(fleet: Fleet, people: People, implementation: str, attempt: str) -> None:
    nsqd = nsqd_with(fleet, implementation, people, "", "--tls-required=tcp-https")
    sent, expected = PLAIN_ATTEMPTS[attempt]
    with RawClient(nsqd.tcp_address) as client:
        client.send(sent)
        if sent:
            client.read_frame()
        client.send(pub("secret", b"in the clear"))
        frames = client.read_until_closed()
    assert [frame.data[: len(expected)] for frame in frames[-1:]] in ([expected], [])
    assert all(not frame.data.startswith(b"OK") for frame in frames[-1:])
    assert nsqd.topic_stats("secret") is None


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("how", ["after the answer", "with IDENTIFY"])
def test_plain_commands_after_a_tls_upgrade_are_not_executed(
    fleet: Fleet, people: People, implementation: str, how: str
) -> None:
    """Commands injected between IDENTIFY and the handshake are never executed."""
    nsqd = nsqd_with(fleet, implementation, people)
    asked = identify(feature_negotiation=True, tls_v1=True)
    with RawClient(nsqd.tcp_address) as client:
        if how == "with IDENTIFY":
            client.send(asked + pub("injected", b"x"))
            client.read_frame()
        else:
            client.send(asked)
            client.read_frame()
            client.send(pub("injected", b"x"))
        client.half_close()
        client.read_until_closed()
    assert nsqd.topic_stats("injected") is None
    assert serves(nsqd, people)


def test_plain_http_on_the_https_port_is_answered_with_400(fleet: Fleet, people: People) -> None:
    nsqd = nsqd_with(fleet, "nsqx", people)
    with RawClient(nsqd.addresses["HTTPS"], magic=b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n") as client:
        assert client.read_until_closed() == []
    assert serves(nsqd, people)
