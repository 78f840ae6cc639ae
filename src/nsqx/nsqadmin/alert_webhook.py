"""Sends alerts to a webhook, in the form in which Prometheus' Alertmanager sends them.

Messages wait in a bounded queue and are sent by a task of their own, one after the other, so that a slow receiver never
delays a poll. A message is repeated until it is accepted or its deadline has passed. Does not decide what is sent.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import orjson

from nsqx.errors import RequestFailed
from nsqx.nsqadmin.alert_rules import prometheus_rule
from nsqx.nsqadmin.alerts import FIRING, RESOLVED, Alert

if TYPE_CHECKING:
    from nsqx.cluster.http import HTTPSession
    from nsqx.log import Log

MAX_PER_MESSAGE = 100
_MAX_WAITING = 200
_FIRST_RETRY_S = 1.0
_MAX_RETRY_S = 60.0
_DEADLINE_S = 3600.0
_STOP_S = 1.0


class AlertWebhook:
    """The queue of one webhook. ``start`` it in a running event loop, ``stop`` it once."""

    def __init__(
        self,
        url: str,
        page_url: Callable[[], str],
        http: HTTPSession,
        log: Log,
        *,
        cluster: str = "",
        first_retry_s: float = _FIRST_RETRY_S,
        deadline_s: float = _DEADLINE_S,
    ) -> None:
        """``page_url`` returns the address of the page without a slash at the end; ``cluster`` is a label."""
        self._url = url
        self._page_url = page_url
        self._cluster = cluster
        self._http = http
        self._log = log
        self._first_retry_s = first_retry_s
        self._deadline_s = deadline_s
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._has_work = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._task: asyncio.Task[None] | None = None
        self.problem = ""
        """The reason why the last attempt failed; empty if it succeeded."""

    @property
    def waiting_count(self) -> int:
        """The number of messages that are not sent yet."""
        return len(self._waiting)

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop; the waiting messages have a second."""
        if self._task is None:
            return
        try:
            async with asyncio.timeout(_STOP_S):
                await self._is_idle.wait()
        except TimeoutError:
            self._log.warn("%d messages about alerts were not sent", len(self._waiting))
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def send(self, alerts: Sequence[Alert]) -> None:
        """Queue messages about alerts that fire or are resolved; never blocks. Old messages make way for new ones."""
        for first in range(0, len(alerts), MAX_PER_MESSAGE):
            body = orjson.dumps(message(alerts[first : first + MAX_PER_MESSAGE], self._page_url(), self._cluster))
            if len(self._waiting) >= _MAX_WAITING:
                self._waiting.popleft()
                self._log.error("dropped a message about alerts: %d wait for %s", _MAX_WAITING, self._receiver)
            self._waiting.append((time.monotonic() + self._deadline_s, body))
        if self._waiting:
            self._has_work.set()
            self._is_idle.clear()

    @property
    def _receiver(self) -> str:
        """The host of the webhook; the rest of its URL can be a secret."""
        return urlsplit(self._url).netloc.rpartition("@")[2]

    async def _run(self) -> None:
        pause_s = self._first_retry_s
        while True:
            await self._has_work.wait()
            deadline_s, body = entry = self._waiting[0]
            self.problem = await self._post(body)
            if self.problem and time.monotonic() + pause_s < deadline_s:
                if pause_s == self._first_retry_s:
                    self._log.warn("failed to send alerts to %s - %s; trying again", self._receiver, self.problem)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _MAX_RETRY_S)
                continue
            if self.problem:
                self._log.error("gave up sending alerts to %s - %s", self._receiver, self.problem)
            pause_s = self._first_retry_s
            if self._waiting and self._waiting[0] is entry:
                self._waiting.popleft()
            if not self._waiting:
                self._has_work.clear()
                self._is_idle.set()

    async def _post(self, body: bytes) -> str:
        """Send one message; return why it failed, or an empty text."""
        try:
            answer = await self._http.fetch("POST", self._url, body, {"Content-Type": "application/json"})
        except RequestFailed as error:
            # The reason alone: the text of the error contains the URL.
            return error.plain
        return "" if 200 <= answer.status < 300 else f"the answer is {answer.status}"


def message(alerts: Sequence[Alert], page_url: str, cluster: str = "") -> dict[str, Any]:
    """Return the body of a message about some alerts; ``cluster`` is the name if there are several."""
    common = {"cluster": cluster} if cluster else {}
    return {
        "version": "4",
        "receiver": "nsqadmin",
        "status": FIRING if any(each.state == FIRING for each in alerts) else RESOLVED,
        "groupKey": "nsqadmin",
        "truncatedAlerts": 0,
        "groupLabels": {},
        "commonLabels": common,
        "commonAnnotations": {},
        "externalURL": page_url,
        "alerts": [_alert(each, page_url, common) for each in alerts],
    }


def _alert(alert: Alert, page_url: str, common: dict[str, str]) -> dict[str, Any]:
    key, rule = alert.key, alert.rule
    labels = {"alertname": prometheus_rule(rule)["alert"], "rule": rule.name, "severity": rule.severity}
    labels |= common | {name: value for name, value in key._asdict().items() if value and name != "rule"}
    return {
        "status": alert.state,
        "labels": labels,
        "annotations": {
            "summary": rule.summary(key.subject, alert.value),
            "value": f"{alert.value:g}",
            "threshold": f"{rule.threshold:g}",
        },
        "startsAt": _time_text(alert.since_s),
        "endsAt": _time_text(alert.resolved_s) if alert.state == RESOLVED else "0001-01-01T00:00:00Z",
        "generatorURL": page_url + page_path(alert),
    }


def page_path(alert: Alert) -> str:
    """Return the path of the view of an alert's subject, below the base path."""
    key = alert.key
    parts = ("nodes", key.node) if key.node else ("topics", key.topic, key.channel)
    return "".join(f"/{quote(part, safe='')}" for part in parts if part)


def _time_text(time_s: float) -> str:

    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
