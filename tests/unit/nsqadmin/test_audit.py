"""Audit records and notifications."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any, cast

from nsqx.errors import RequestFailed
from nsqx.log import INFO, Log
from nsqx.net.http_client import HTTPAnswer
from nsqx.nsqadmin.access import Caller, Role
from nsqx.nsqadmin.audit import DONE, FAILED, Action, Audit
from nsqx.nsqadmin.options import NsqadminOptions

CALLER = Caller("1.2.3.4:5", "ann", "basic", Role.OPERATE, "agent/1", "http://h/x")


class Endpoint:
    """A notification endpoint that fails the first ``failures`` requests."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.received: list[dict[str, Any]] = []

    async def fetch(self, method: str, url: str, body: bytes, headers: dict[str, str]) -> HTTPAnswer:
        await asyncio.sleep(0)
        assert (method, url, headers) == ("POST", "http://hook/", {"Content-Type": "application/json"})
        if self.failures:
            self.failures -= 1
            raise RequestFailed("refused")
        self.received.append(json.loads(body))
        return HTTPAnswer(500)


def audit(endpoint: Endpoint | None = None, **options: Any) -> tuple[Audit, io.StringIO]:
    lines = io.StringIO()
    return Audit(NsqadminOptions(**options), cast("Any", endpoint), Log("", INFO, lines)), lines


async def test_an_action_is_logged_and_appended_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    records, lines = audit(audit_log=str(path))
    records.record(Action("pause_channel", "t", "c"), CALLER, DONE)
    records.record(Action("delete_topic", "t\nINFO: forged"), CALLER, FAILED, "why\nnot")
    log = lines.getvalue().splitlines()
    assert len(log) == 2
    assert log[0].endswith("AUDIT: pause_channel topic(t) channel(c) node() user(ann) from 1.2.3.4:5 - done")
    assert "topic(t?INFO: forged)" in log[1]
    written = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["outcome"] for line in written] == ["done", "failed"]
    assert written[1]["topic"] == "t\nINFO: forged"
    assert (written[0]["role"], written[0]["user"], written[0]["basic_user"]) == ("operate", "ann", "basic")


async def test_an_unwritable_file_is_only_logged(tmp_path: Path) -> None:
    records, lines = audit(audit_log=str(tmp_path))
    records.record(Action("x", "t"), CALLER, DONE)
    assert "failed to write --audit-log" in lines.getvalue()


async def test_the_file_may_be_rotated(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    records, _ = audit(audit_log=str(path))
    records.record(Action("x", "t"), CALLER, DONE)
    path.rename(tmp_path / "audit.1")
    records.record(Action("y", "t"), CALLER, DONE)
    assert json.loads(path.read_text())["action"] == "y"


async def test_notifications_are_sent_in_order() -> None:
    endpoint = Endpoint(failures=1)
    records, lines = audit(endpoint, notification_http_endpoint="http://hook/")
    records.start()
    for number in range(3):
        records.notify(Action(f"a{number}", "t", "c" if number == 1 else "", "n:1" if number == 2 else ""), CALLER)
    await records.stop()
    assert [each["action"] for each in endpoint.received] == ["a1", "a2"]
    assert list(endpoint.received[0]) == [
        *("action", "topic", "channel", "timestamp", "user", "remote_ip", "user_agent", "url", "via")
    ]
    assert endpoint.received[0]["user"] == "basic"
    assert endpoint.received[1]["node"] == "n:1"
    assert "failed to POST notification - refused" in lines.getvalue()


async def test_without_an_endpoint_nothing_is_sent() -> None:
    endpoint = Endpoint()
    records, _ = audit(endpoint)
    records.start()
    records.notify(Action("x", "t"), CALLER)
    await records.stop()
    assert endpoint.received == []


async def test_the_notification_queue_is_bounded() -> None:
    records, lines = audit(Endpoint(), notification_http_endpoint="http://hook/")
    for _ in range(1001):
        records.notify(Action("x", "t"), CALLER)
    assert lines.getvalue().count("the queue is full") == 1
