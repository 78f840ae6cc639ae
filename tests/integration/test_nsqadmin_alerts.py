"""Alerts with real daemons: the route, the webhook, a restart, and bad configurations."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from daemons import Daemon, Fleet, wait_until

WAIT_S = 60


class Receiver:
    """A webhook that keeps what it gets; it refuses the first message."""

    def __init__(self) -> None:
        self.alerts: list[dict[str, Any]] = []
        self.refusals = 1
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if receiver.refusals:
                    receiver.refusals -= 1
                    self.send_response(503)
                else:
                    receiver.alerts.extend(json.loads(body)["alerts"])
                    self.send_response(204)
                self.end_headers()

            def log_message(self, *_arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/key"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def states(self) -> list[tuple[str, str]]:
        return [(each["labels"]["rule"], each["status"]) for each in self.alerts]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


CONFIG = """
alert_webhook = "{url}"
external_url = "http://admin.example.com/nsq/"

[[alert]]
rule = "no_consumer"
topic = "ignored*"
enabled = false

[[alert]]
rule = "no_consumer"
for = "300ms"
keep_firing_for = "300ms"

[[alert]]
rule = "node_gone"
for = "100ms"
keep_firing_for = "100ms"
"""


def write_config(path: Path, url: str) -> str:
    file = path / "nsqadmin.toml"
    file.write_text(CONFIG.format(url=url))
    return f"--config={file}"


def alerts(admin: Daemon) -> dict[str, Any]:
    document: dict[str, Any] = admin.request("GET", "/api/alerts").json()
    return document


def firing(admin: Daemon) -> list[str]:
    return [each["summary"] for each in alerts(admin)["alerts"] if each["state"] == "firing"]


def test_an_alert_fires_is_sent_survives_a_restart_and_is_resolved(
    fleet: Fleet, receiver: Receiver, tmp_path: Path, topic: str
) -> None:
    nsqd = fleet.nsqd("nsqx")
    flags = (
        f"--nsqd-http-address={nsqd.http_address}",
        "--poll-interval=100ms",
        "--history-window=1m",
        f"--state-file={tmp_path}/nodes.json",
        write_config(tmp_path, receiver.url),
    )
    admin = fleet.nsqadmin("nsqx", *flags)
    for name in (topic, "ignored.topic"):
        nsqd.post("/topic/create", topic=name)
        nsqd.post("/channel/create", topic=name, channel="c")
        nsqd.post("/mpub", b"a\nb", topic=name)
    summary = f"{topic}/c has 2 waiting messages and no consumer"
    wait_until(lambda: firing(admin) == [summary], "the alert fires", WAIT_S)
    wait_until(lambda: receiver.states() == [("no_consumer", "firing")], "the second attempt is accepted", WAIT_S)
    assert receiver.alerts[0]["generatorURL"] == f"http://admin.example.com/nsq/topics/{topic}/c"
    head = admin.request("GET", "/api/health").json()
    assert (head["alerts"]["firing"], head["alerts"]["warning"]) == (1, 1)
    since_s = alerts(admin)["alerts"][0]["since_s"]

    admin.stop()
    admin = fleet.nsqadmin("nsqx", *flags)
    wait_until(lambda: admin.request("GET", "/api/health").json()["number"] >= 3, "polls", WAIT_S)
    assert firing(admin) == [summary]
    assert alerts(admin)["alerts"][0]["since_s"] == since_s
    nsqd.post("/channel/empty", topic=topic, channel="c")
    wait_until(lambda: len(receiver.alerts) == 2, "the message about the end", WAIT_S)
    assert receiver.states() == [("no_consumer", "firing"), ("no_consumer", "resolved")], "it did not fire twice"
    document = alerts(admin)
    assert document["alerts"] == []
    assert [each["summary"] for each in document["resolved"]] == [summary]
    assert document["webhook"] == {"waiting": 0, "problem": ""}
    assert {rule["rule"]: rule["for_s"] for rule in document["rules"]}["no_consumer"] == 0.3

    nsqd.stop()
    wait_until(lambda: ("node_gone", "firing") in receiver.states(), "the nsqd is gone", WAIT_S)
    assert alerts(admin)["alerts"][0]["node"] == nsqd.http_address
    assert admin.request("GET", "/config/alert_webhook").status == 400, "the URL can contain a key"


def test_a_damaged_file_of_alerts_is_set_aside(fleet: Fleet, tmp_path: Path) -> None:
    nsqd = fleet.nsqd("nsqx")
    (tmp_path / "alerts.json").write_text('{"format": 7}')
    flags = (f"--nsqd-http-address={nsqd.http_address}", f"--state-file={tmp_path}/nodes.json")
    admin = fleet.nsqadmin("nsqx", *flags)
    assert alerts(admin)["alerts"] == []
    assert (tmp_path / "alerts.json.invalid").read_text() == '{"format": 7}'
    assert admin.log.count("invalid file of alerts") == 1


def test_there_are_no_alerts_without_polls(fleet: Fleet) -> None:
    nsqd = fleet.nsqd("nsqx")
    admin = fleet.nsqadmin("nsqx", f"--nsqd-http-address={nsqd.http_address}", "--poll-interval=0")
    answer = admin.request("GET", "/api/alerts")
    assert (answer.status, answer.json()) == (404, {"message": "HISTORY_DISABLED"})
