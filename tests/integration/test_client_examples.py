"""Every example runs against a real nsqd, and the manual contains the current text of each example."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from certificates import Authority
from daemons import Fleet, wait_until

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
MANUAL = [ROOT / "docs" / "client.md", ROOT / "docs" / "applications.md"]


def command(name):
    return [sys.executable, str(EXAMPLES / f"{name}.py")]


def run(name, **environment):
    """Run an example, which must exit with 0, and return the lines that it prints."""
    done = subprocess.run(
        command(name), env={**os.environ, **environment}, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_published_orders_are_consumed_by_iterating(fleet: Fleet):
    daemon = fleet.nsqd("nsqx")
    lines = run("publish", NSQD=daemon.tcp_address)
    assert lines[0].startswith("refused: publish to orders failed after 1 attempt: ")
    assert lines[1] == "published 4 orders"
    assert sorted(run("consume_iterate", NSQD=daemon.tcp_address, COUNT="4")) == [f"order {n}" for n in range(1, 5)]


def test_fast_publishes_are_consumed_in_batches(fleet: Fleet):
    daemon = fleet.nsqd("nsqx")
    lines = run("publish_fast", NSQD=daemon.tcp_address)
    assert len(lines) == 2
    assert all(line.endswith(" messages a second") for line in lines)
    assert daemon.topic_stats("clicks")["message_count"] == 40_000
    (line,) = run("consume_batches", NSQD=daemon.tcp_address, COUNT="40000")
    assert line == "stored 40000 clicks"


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_the_handler_consumes_until_a_signal(fleet: Fleet, signal_number):
    daemon = fleet.nsqd("nsqx")
    daemon.post("/topic/create", topic="orders")
    daemon.post("/channel/create", topic="orders", channel="billing")
    run("publish", NSQD=daemon.tcp_address)
    environment = {**os.environ, "NSQD": daemon.tcp_address}
    with subprocess.Popen(
        command("consume_handler"),
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=accept_interrupts,
    ) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline().strip() for _ in range(5)]
            wait_until(lambda: unfinished_count(daemon) == 0, "all are answered")
            process.send_signal(signal_number)
            rest = process.stdout.read()
            code = process.wait(20)
        finally:
            process.kill()
    assert sorted(lines) == sorted([*(f"attempt 1: order {n}" for n in range(1, 5)), "attempt 2: order 2"])
    assert code == 0
    assert rest.startswith("ConsumerStats(received=5, finished=4, requeued=1")
    channel = daemon.channel_stats("orders", "billing")
    assert (channel["client_count"], channel["requeue_count"], channel["timeout_count"]) == (0, 1, 0)


def accept_interrupts():
    """Restore the default action of SIGINT. Background jobs of a shell inherit that SIGINT is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def unfinished_count(daemon):
    channel = daemon.channel_stats("orders", "billing")
    return sum(channel[key] for key in ("depth", "in_flight_count", "deferred_count"))


def test_a_failing_message_is_published_as_a_dead_letter(fleet: Fleet):
    daemon = fleet.nsqd("nsqx")
    assert run("dead_letters", NSQD=daemon.tcp_address) == [
        "dead letter after 3 attempts: impossible order: no customer for impossible order"
    ]
    assert daemon.topic_stats("orders.dead")["message_count"] == 1


def test_the_consumer_discovers_nsqd(fleet: Fleet):
    lookupd = fleet.nsqlookupd("nsqx")
    daemon = fleet.nsqd("nsqx", f"--lookupd-tcp-address={lookupd.tcp_address}")
    wait_until(lambda: lookupd.request("GET", "/nodes").json()["producers"], "nsqd is registered")
    assert run("discovery", LOOKUPD=lookupd.http_address) == [f"order 1 from {daemon.tcp_address}"]


def test_the_blocking_script_publishes_and_consumes(fleet: Fleet):
    daemon = fleet.nsqd("nsqx")
    assert run("blocking_script", NSQD=daemon.tcp_address) == ["did 100 jobs"]


def test_publishing_over_tls(fleet: Fleet, tmp_path):
    authority = Authority(tmp_path)
    server, client = authority.sign("server"), authority.sign("client")
    daemon = fleet.nsqd(
        "nsqx",
        f"--tls-cert={server.cert}",
        f"--tls-key={server.key}",
        f"--tls-root-ca-file={authority.cert}",
        "--tls-client-auth-policy=require-verify",
    )
    files = {"CA_FILE": authority.cert, "CERT_FILE": client.cert, "KEY_FILE": client.key}
    assert run("secure", NSQD=daemon.tcp_address, AUTH_SECRET="unused", **files) == ["published"]


def test_the_manual_contains_every_example():
    text = "".join(page.read_text() for page in MANUAL)
    shown = dict(re.findall(r"`examples/(\w+)\.py`:\n\n```python\n(.*?)```", text, re.DOTALL))
    assert shown == {path.stem: path.read_text() for path in sorted(EXAMPLES.glob("*.py"))}
