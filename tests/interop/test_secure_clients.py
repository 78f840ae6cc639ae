"""Third-party clients with every combination of TLS, client certificate, snappy and deflate."""

import importlib.util
import subprocess
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from clients.workload import EVERYTHING, REQUEUED
from test_clients import client_report, left_over, node_client, python_client

from certificates import Authority, Certificate
from daemons import Daemon, Fleet, program_command, wait_until, write_metadata

TOOL_TIMEOUT_S = 40
BODIES = [b"message %03d" % number for number in range(50)]
CLIENTS = ("pynsq", "nsqjs", "go")
SECURITIES = ("plain", "tls", "certificate")
COMPRESSIONS = ("", "snappy", "deflate")


def daemons_for(client: str, security: str, compression: str) -> tuple[str, ...]:
    """Return the implementations of nsqd to test a combination with.

    Go's nsqd runs only with client certificates, to limit the time. It does not run with pynsq and compression: Go's
    nsqd splits a compressed block over several TLS records, and pynsq treats a part of a block as an error.
    """
    if security != "certificate" or (client == "pynsq" and compression):
        return ("nsqx",)
    return ("go", "nsqx")


COMBINATIONS = [
    (*combination, implementation)
    for combination in product(CLIENTS, SECURITIES, COMPRESSIONS)
    for implementation in daemons_for(*combination)
]


class Certificates(NamedTuple):
    """The certificates of a server and of a client, and the authority that signed both."""

    authority: Authority
    server: Certificate
    client: Certificate


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    return Certificates(authority, authority.sign("server"), authority.sign("client"))


def daemon_flags(certificates: Certificates, security: str) -> list[str]:
    if security == "plain":
        return []
    flags = [
        f"--tls-cert={certificates.server.cert}",
        f"--tls-key={certificates.server.key}",
        "--tls-required=tcp-https",
    ]
    if security == "certificate":
        flags += [f"--tls-root-ca-file={certificates.authority.cert}", "--tls-client-auth-policy=require-verify"]
    return flags


def client_words(certificates: Certificates, security: str, compression: str) -> list[str]:
    words = [compression] if compression else []
    if security != "plain":
        words += ["tls", f"ca={certificates.authority.cert}"]
    if security == "certificate":
        words += [f"cert={certificates.client.cert}", f"key={certificates.client.key}"]
    return words


def go_options(flag: str, words: list[str]) -> list[str]:
    """Convert options of client_words into flags of Go's utilities."""
    names = {"tls": "tls_v1", "ca": "tls_root_ca_file", "cert": "tls_cert", "key": "tls_key"}
    options = []
    for word in words:
        name, _, value = word.partition("=")
        options.append(f"--{flag}={names.get(name, name)},{value or 'true'}")
    return options


@pytest.mark.parametrize(("client", "security", "compression", "implementation"), COMBINATIONS)
def test_a_client_publishes_and_consumes_every_message(
    client: str,
    security: str,
    compression: str,
    implementation: str,
    certificates: Certificates,
    fleet: Fleet,
    tmp_path: Path,
) -> None:
    if client == "pynsq" and compression == "snappy" and importlib.util.find_spec("snappy") is None:
        pytest.skip("python-snappy missing: pip install python-snappy")
    write_metadata(tmp_path, {"work": ["ch"]})
    nsqd = fleet.nsqd(implementation, *daemon_flags(certificates, security), data_path=tmp_path)
    words = client_words(certificates, security, compression)
    expected = {"tls": security != "plain", "snappy": compression == "snappy", "deflate": compression == "deflate"}
    if client == "go":
        run_go_tools(nsqd, words, expected)
        return
    program = node_client() if client == "nsqjs" else python_client(client)
    with client_report([*program, nsqd.tcp_address, "work", "ch", *words], tmp_path / "client.log") as report:
        assert report["finished"] == sorted(body.decode() for body in EVERYTHING)
        assert report["attempts"] == {body.decode(): [1, 2] if body == REQUEUED else [1] for body in EVERYTHING}
        assert features(nsqd) == expected
        wait_until(lambda: left_over(nsqd) == 0, "every message is finished")


def features(nsqd: Daemon) -> dict[str, Any]:
    """Return the features that the only consumer has negotiated."""
    (consumer,) = nsqd.channel_stats("work", "ch")["clients"]
    return {name: consumer[name] for name in ("tls", "snappy", "deflate")}


def run_go_tools(nsqd: Daemon, words: list[str], expected: dict[str, Any]) -> None:
    address = f"--nsqd-tcp-address={nsqd.tcp_address}"
    command = [*program_command("go", "to_nsq"), "--topic=work", address, *go_options("producer-opt", words)]
    done = subprocess.run(command, input=b"\n".join(BODIES) + b"\n", capture_output=True, timeout=TOOL_TIMEOUT_S)
    assert done.returncode == 0, done.stderr.decode()
    command = [*program_command("go", "nsq_tail"), "--topic=work", "--channel=ch", address]
    command += go_options("consumer-opt", words)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as tail:
        try:
            assert tail.stdout is not None
            lines = sorted(tail.stdout.readline().rstrip(b"\n") for _ in BODIES)
            assert lines == BODIES
            assert features(nsqd) == expected
            tail.terminate()
            assert tail.wait(TOOL_TIMEOUT_S) == 0
        finally:
            tail.kill()
