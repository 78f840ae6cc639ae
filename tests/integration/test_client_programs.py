"""Five programs of the manual, with a real nsqd that is away, frozen or killed, and with SIGTERM and SIGKILL."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from daemons import Fleet, free_port, wait_until

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LIMIT_S = 40.0


class Program:
    """A running example, and the lines that it has printed."""

    def __init__(self, name, *arguments, **environment):
        self.lines = []
        self.process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.strip())

    def ended(self, signal_number=None):
        """Send a signal, wait for the end, and return the exit code."""
        if signal_number is not None:
            self.process.send_signal(signal_number)
        code = self.process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        return code

    def close(self):
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()


@contextlib.contextmanager
def running(name, *arguments, **environment):
    program = Program(name, *arguments, **environment)
    try:
        yield program
    finally:
        program.close()


def request(url, body=None):
    """Return the status and the JSON document of an answer, or 0 while nothing listens."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=LIMIT_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except urllib.error.URLError:
        return 0, None


def prepared(fleet: Fleet, topic, channel, bodies, *flags):
    daemon = fleet.nsqd("nsqx", *flags)
    daemon.post("/topic/create", topic=topic)
    daemon.post("/channel/create", topic=topic, channel=channel)
    daemon.post("/mpub", b"\n".join(bodies), topic=topic)
    return daemon


def unfinished(daemon, topic, channel):
    stats = daemon.channel_stats(topic, channel)
    return sum(stats[key] for key in ("depth", "in_flight_count", "deferred_count"))


def test_a_web_application_answers_during_an_outage(fleet: Fleet):
    pytest.importorskip("starlette", reason="starlette missing: pip install starlette")
    pytest.importorskip("uvicorn", reason="uvicorn missing: pip install uvicorn")
    address, port = f"127.0.0.1:{free_port()}", free_port()
    url = f"http://127.0.0.1:{port}"
    with running("web_producer", NSQD=address, PORT=str(port)) as program:
        wait_until(lambda: request(f"{url}/ready")[0], "the program listens", LIMIT_S)
        assert request(f"{url}/ready") == (503, {"nsqd": {address: f"{address}: Connection refused"}})
        status, document = request(f"{url}/orders", b'{"id":1}')
        assert (status, document["may_be_published"]) == (503, False)
        assert request(f"{url}/orders", b"no JSON")[0] == 400

        daemon = fleet.nsqd("nsqx", f"--tcp-address={address}")
        wait_until(lambda: request(f"{url}/ready")[0] == 200, "the producer is connected", LIMIT_S)
        assert request(f"{url}/orders", b'{"id":2}') == (202, {"published": True})

        daemon.process.send_signal(signal.SIGSTOP)
        try:
            status, document = request(f"{url}/orders", b'{"id":3}')
            assert (status, document["may_be_published"]) == (503, True)
        finally:
            daemon.process.send_signal(signal.SIGCONT)
        wait_until(lambda: request(f"{url}/orders", b'{"id":4}')[0] == 202, "publishing works again", LIMIT_S)
        # uvicorn ends with the signal after its lifespan.
        assert program.ended(signal.SIGTERM) in (0, -signal.SIGTERM), program.lines


def test_a_worker_handles_50_at_once_and_finishes_them_at_sigterm(fleet: Fleet):
    bodies = [b'{"to":"%d"}' % number for number in range(200)]
    daemon = prepared(fleet, "emails", "worker", bodies)
    with running("worker", NSQD=daemon.tcp_address, SECONDS="1") as program:
        wait_until(lambda: len(program.lines) >= 50, "50 messages are being handled", LIMIT_S)
        assert program.ended(signal.SIGTERM) == 0, program.lines
        begun = len(program.lines) - 1
        assert program.lines[begun] == f"sent {begun}, at most 50 at once"
    stats = daemon.channel_stats("emails", "worker")
    assert begun + stats["depth"] == len(bodies)
    assert (stats["in_flight_count"], stats["timeout_count"], stats["client_count"]) == (0, 0, 0)


def test_batches_are_stored_once_although_the_program_is_killed(fleet: Fleet, tmp_path):
    bodies = [*(b'{"page":"/%d"}' % number for number in range(2000)), b"no JSON"]
    # Messages of a killed consumer are delivered again when they have timed out.
    daemon = prepared(fleet, "clicks", "database", bodies, "--msg-timeout=3s")
    database = str(tmp_path / "clicks.db")
    with running("batches_to_database", NSQD=daemon.tcp_address, DATABASE=database) as program:
        wait_until(lambda: program.lines, "a batch is stored", LIMIT_S)
        program.ended(signal.SIGKILL)
    lines = program.lines
    with running("batches_to_database", NSQD=daemon.tcp_address, DATABASE=database) as program:
        wait_until(lambda: unfinished(daemon, "clicks", "database") == 0, "everything is stored", LIMIT_S)
        assert program.ended(signal.SIGTERM) == 0, program.lines
    with contextlib.closing(sqlite3.connect(database)) as connection:
        pages = sorted(page for (page,) in connection.execute("SELECT page FROM clicks"))
    assert pages == sorted(f"/{number}" for number in range(2000))
    refused = [line for line in (*lines, *program.lines) if line.startswith("not stored: b'no JSON': ")]
    assert refused


def run_script(daemon_address, text):
    return subprocess.run(
        [sys.executable, str(EXAMPLES / "synchronous_script.py")],
        input=text,
        env={**os.environ, "NSQD": daemon_address},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_a_synchronous_script_reports_what_is_missing(fleet: Fleet):
    daemon = fleet.nsqd("nsqx")
    done = run_script(daemon.tcp_address, "".join(f'{{"id": {number}}}\n' for number in range(500)))
    assert (done.returncode, done.stdout) == (0, "published 500 orders, 0 failed\n")
    assert daemon.topic_stats("orders")["message_count"] == 500
    done = run_script(daemon.tcp_address, '{"id": 1}\nno JSON\n')
    assert (done.returncode, done.stdout) == (1, "published 1 orders, 1 failed\n")
    assert done.stderr == "line 2: Expecting value: line 1 column 1 (char 0)\n"


def test_a_synchronous_script_ends_in_time_without_nsqd():
    began_s = time.monotonic()
    done = run_script(f"127.0.0.1:{free_port()}", '{"id": 1}\n{"id": 2}\n')
    assert time.monotonic() - began_s < LIMIT_S
    assert done.returncode == 1
    assert done.stdout == "published 0 orders, 2 failed\n"
    assert "line 1: publish to orders " in done.stderr
    assert "Connection refused" in done.stderr


def test_retries_and_dead_letters(fleet: Fleet):
    pytest.importorskip("msgspec", reason="msgspec missing: pip install msgspec")
    orders = [b'{"customer":"ada"}', b'{"customer":"ada","fails":1}', b'{"customer":"bob"}', b'{"customer":3}']
    daemon = prepared(fleet, "orders", "shipping", orders)
    environment = {"NSQD": daemon.tcp_address, "DELAY": "100ms"}
    with running("retries_and_dead_letters", **environment) as program:
        wait_until(lambda: unfinished(daemon, "orders", "shipping") == 0, "everything has an outcome", LIMIT_S)
        assert program.ended(signal.SIGTERM) == 0, program.lines
    assert program.lines.count("ada: shipped") == 2
    # The retry here, and then the next delivery.
    assert program.lines.count("ada: attempt 1") == 3
    assert program.lines.count("ada: attempt 2") == 1
    assert program.lines.count("bob: attempt 1") == 1
    assert any("giving up: GiveUp: no customer bob" in line for line in program.lines)
    assert any("giving up: InvalidBody: the body is not a valid Order" in line for line in program.lines)
    assert daemon.topic_stats("orders.dead")["message_count"] == 2

    with running("retries_and_dead_letters", "redrive", **environment) as program:
        assert program.ended() == 0, program.lines
    assert program.lines == ["redrove 2"]
    with running("retries_and_dead_letters", **environment, CUSTOMERS="ada,bob") as program:
        wait_until(lambda: "bob: shipped" in program.lines, "the order is shipped", LIMIT_S)
