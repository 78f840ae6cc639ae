"""The messages to the webhook: their form, retries, deadline and bounds."""

import asyncio
import io
import json
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from nsqx.errors import RequestFailed
from nsqx.log import INFO, Log
from nsqx.net.http_client import HTTPAnswer
from nsqx.nsqadmin import alert_webhook
from nsqx.nsqadmin.alert_rules import DEFAULT_RULES, DISK_LOW, NO_CONSUMER
from nsqx.nsqadmin.alert_webhook import AlertWebhook, message
from nsqx.nsqadmin.alerts import FIRING, RESOLVED, Alert, AlertKey

URL = "https://hooks.example.com/secret"


def alert(state: str = FIRING, *, topic: str = "t#ephemeral") -> Alert:
    rule = DEFAULT_RULES[NO_CONSUMER]
    resolved_s = 1_794_737_500.0 if state == RESOLVED else 0.0
    key = AlertKey(NO_CONSUMER, topic, "c")
    return Alert(key, rule, state, 1_794_737_430.5, 1_794_737_431.0, 1_794_737_432.0, 7, resolved_s)


def test_the_form_is_that_of_the_alertmanager() -> None:
    document = message([alert()], "http://admin:4171/nsq")
    assert (document["version"], document["status"], document["externalURL"]) == (
        "4",
        "firing",
        "http://admin:4171/nsq",
    )
    assert document["alerts"] == [
        {
            "status": "firing",
            "labels": {
                "alertname": "NsqChannelWithoutConsumer",
                "rule": "no_consumer",
                "severity": "warning",
                "topic": "t#ephemeral",
                "channel": "c",
            },
            "annotations": {
                "summary": "t#ephemeral/c has 7 waiting messages and no consumer",
                "value": "7",
                "threshold": "0",
            },
            "startsAt": "2026-11-15T10:10:30.500Z",
            "endsAt": "0001-01-01T00:00:00Z",
            "generatorURL": "http://admin:4171/nsq/topics/t%23ephemeral/c",
        }
    ]


def test_resolved_alerts_have_an_end_and_nodes_a_link() -> None:
    document = message([alert(RESOLVED)], "")
    assert document["status"] == document["alerts"][0]["status"] == "resolved"
    assert document["alerts"][0]["endsAt"] == "2026-11-15T10:11:40.000Z"
    assert message([alert(RESOLVED), alert()], "")["status"] == "firing"
    node = Alert(AlertKey(DISK_LOW, node="a:1"), DEFAULT_RULES[DISK_LOW], FIRING, 1.0, 2.0, 2.0, 0.05)
    assert message([node], "http://x")["alerts"][0]["generatorURL"] == "http://x/nodes/a%3A1"


@dataclass
class Receiver:
    """A webhook that answers with the next status, and with 200 after the last one."""

    statuses: list[int | Exception] = field(default_factory=list)
    got: list[dict[str, Any]] = field(default_factory=list)
    attempts: int = 0
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def fetch(self, _method: str, url: str, body: bytes, _headers: dict[str, str]) -> HTTPAnswer:
        await asyncio.sleep(0)
        assert url == URL
        self.attempts += 1
        status = self.statuses.pop(0) if self.statuses else 200
        self.arrived.set()
        if isinstance(status, Exception):
            raise status
        if status < 300:
            self.got.append(json.loads(body))
        return HTTPAnswer(status, {}, b"")


class Line:
    """A webhook with its receiver and its log."""

    def __init__(self, *statuses: int | Exception, **times: float) -> None:
        self.receiver = Receiver(list(statuses))
        self.lines = io.StringIO()
        log = Log("", INFO, self.lines)
        self.webhook = AlertWebhook(
            URL, lambda: "", cast("Any", self.receiver), log, **{"first_retry_s": 0.001, **times}
        )

    async def drained(self) -> None:
        async with asyncio.timeout(30):
            await self.webhook._is_idle.wait()

    def topics(self) -> list[str]:
        return [each["labels"]["topic"] for document in self.receiver.got for each in document["alerts"]]


async def test_messages_are_repeated_in_order_until_they_are_accepted() -> None:
    line = Line(500, RequestFailed("dial tcp: refused", of=f'Post "{URL}"', plain="the connection was refused"), 204)
    line.webhook.start()
    line.webhook.send([alert(topic="first")])
    line.webhook.send([alert(topic="second")])
    await line.drained()
    assert line.topics() == ["first", "second"]
    assert line.receiver.attempts == 4
    assert line.webhook.problem == ""
    assert line.webhook.waiting_count == 0
    assert line.lines.getvalue().count("failed to send alerts to hooks.example.com") == 1, "logged once"
    assert "secret" not in line.lines.getvalue()
    await line.webhook.stop()


async def test_a_message_is_given_up_after_its_deadline() -> None:
    line = Line(500, deadline_s=0.0)
    line.webhook.start()
    line.webhook.send([alert(topic="late")])
    await line.drained()
    line.webhook.send([alert(topic="next")])
    await line.drained()
    assert line.topics() == ["next"]
    assert "gave up sending alerts to hooks.example.com - the answer is 500" in line.lines.getvalue()
    await line.webhook.stop()


async def test_the_queue_is_bounded_and_the_oldest_messages_make_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alert_webhook, "_MAX_WAITING", 2)
    line = Line()
    for number in range(4):
        line.webhook.send([alert(topic=f"t{number}")])
    line.webhook.start()
    await line.drained()
    assert line.topics() == ["t2", "t3"]
    assert line.lines.getvalue().count("dropped a message about alerts") == 2
    await line.webhook.stop()


async def test_many_alerts_are_sent_in_several_messages() -> None:
    line = Line()
    line.webhook.start()
    line.webhook.send([alert(topic=f"t{number}") for number in range(250)])
    await line.drained()
    assert [len(document["alerts"]) for document in line.receiver.got] == [100, 100, 50]
    await line.webhook.stop()


async def test_stopping_does_not_wait_for_a_dead_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alert_webhook, "_STOP_S", 0.01)
    line = Line(*[500] * 1000, first_retry_s=60.0)
    line.webhook.start()
    line.webhook.send([alert()])
    async with asyncio.timeout(30):
        await line.receiver.arrived.wait()
        await line.webhook.stop()
    assert "1 messages about alerts were not sent" in line.lines.getvalue()
