"""Other people's clients with every combination of TLS, a client's certificate, snappy and deflate."""

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
    """Go's nsqd shows that the tests are right; for that the fullest combinations will do.

    pynsq takes a TLS record that holds but a part of a compressed block for an error, and Go's nsqd sends such.
    """
    if security != "certificate" or (client == "pynsq" and compression):
        return ("nsqx",)
    return ("go", "nsqx")


COMBINATIONS = [
    (*combination, implementation)
    for combination in product(CLIENTS, SECURITIES, COMPRESSIONS)
    for implementation in daemons_for(*combination)
]


class Pair(NamedTuple):
    """A server's and a client's certificate, and who signed both."""

    authority: Authority
    server: Certificate
    client: Certificate


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    authority = Authority(tmp_path_factory.mktemp("pair"))
    return Pair(authority, authority.sign("server"), authority.sign("client"))


def daemon_flags(pair: Pair, security: str) -> list[str]:
    if security == "plain":
        return []
    flags = [f"--tls-cert={pair.server.cert}", f"--tls-key={pair.server.key}", "--tls-required=tcp-https"]
    if security == "certificate":
        flags += [f"--tls-root-ca-file={pair.authority.cert}", "--tls-client-auth-policy=require-verify"]
    return flags


def client_words(pair: Pair, security: str, compression: str) -> list[str]:
    words = [compression] if compression else []
    if security != "plain":
        words += ["tls", f"ca={pair.authority.cert}"]
    if security == "certificate":
        words += [f"cert={pair.client.cert}", f"key={pair.client.key}"]
    return words


def go_options(flag: str, words: list[str]) -> list[str]:
    """The same for the utilities of Go, which take a client's options one by one."""
    names = {"tls": "tls_v1", "ca": "tls_root_ca_file", "cert": "tls_cert", "key": "tls_key"}
    options = []
    for word in words:
        name, _, value = word.partition("=")
        options.append(f"--{flag}={names.get(name, name)},{value or 'true'}")
    return options


@pytest.mark.parametrize(("client", "security", "compression", "implementation"), COMBINATIONS)
def test_combination(
    client: str, security: str, compression: str, implementation: str, pair: Pair, fleet: Fleet, tmp_path: Path
) -> None:
    if client == "pynsq" and compression == "snappy" and importlib.util.find_spec("snappy") is None:
        pytest.skip("python-snappy missing: pip install python-snappy")
    write_metadata(tmp_path, {"work": ["ch"]})
    nsqd = fleet.nsqd(implementation, *daemon_flags(pair, security), data_path=tmp_path)
    words = client_words(pair, security, compression)
    wanted = {"tls": security != "plain", "snappy": compression == "snappy", "deflate": compression == "deflate"}
    if client == "go":
        run_go_tools(nsqd, words, wanted)
        return
    program = node_client() if client == "nsqjs" else python_client(client)
    with client_report([*program, nsqd.tcp_address, "work", "ch", *words], tmp_path / "client.log") as report:
        assert report["finished"] == sorted(body.decode() for body in EVERYTHING)
        assert report["attempts"] == {body.decode(): [1, 2] if body == REQUEUED else [1] for body in EVERYTHING}
        assert features(nsqd) == wanted
        wait_until(lambda: left_over(nsqd) == 0, "every message is finished")


def features(nsqd: Daemon) -> dict[str, Any]:
    """What the one consumer has agreed on."""
    (consumer,) = nsqd.channel_stats("work", "ch")["clients"]
    return {name: consumer[name] for name in ("tls", "snappy", "deflate")}


def run_go_tools(nsqd: Daemon, words: list[str], wanted: dict[str, Any]) -> None:
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
            assert features(nsqd) == wanted
            tail.terminate()
            assert tail.wait(TOOL_TIMEOUT_S) == 0
        finally:
            tail.kill()
