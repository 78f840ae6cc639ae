"""The audit trail: a log line and a JSON line for every administrative action, and NSQ's notification.

Owns the form of those records. Does not decide whether an action is allowed.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson

from nsqx.errors import RequestFailed

if TYPE_CHECKING:
    from nsqx.cluster.http import HTTPSession
    from nsqx.log import Log
    from nsqx.nsqadmin.access import Caller
    from nsqx.nsqadmin.options import NsqadminOptions

DONE = "done"
PARTLY = "partly"
FAILED = "failed"
REFUSED = "refused"

_MAX_WAITING = 1000
_MAX_RECENT = 200
_STOP_S = 1.0


@dataclass(frozen=True, slots=True)
class Action:
    """An administrative action and its target."""

    name: str
    topic: str
    channel: str = ""
    node: str = ""


class Audit:
    """Records actions. ``start`` it in a running event loop, ``stop`` it once."""

    def __init__(self, options: NsqadminOptions, http: HTTPSession, log: Log) -> None:
        self._options = options
        self._http = http
        self._log = log
        self._waiting: asyncio.Queue[dict[str, Any]] = asyncio.Queue(_MAX_WAITING)
        self._task: asyncio.Task[None] | None = None
        self.recent: deque[dict[str, str]] = deque(maxlen=_MAX_RECENT)
        """The latest records, oldest first, in the form of the audit log."""

    def start(self) -> None:
        self._task = asyncio.create_task(self._send_notifications())

    async def stop(self) -> None:
        """Send the queued notifications, for up to a second."""
        if self._task is None:
            return
        try:
            async with asyncio.timeout(_STOP_S):
                await self._waiting.join()
        except TimeoutError:
            self._log.warn("%d notifications were not sent", self._waiting.qsize())
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def record(self, action: Action, caller: Caller, outcome: str, detail: str = "") -> None:
        """Record an action and its outcome."""
        self._log.info(
            "AUDIT: %s topic(%s) channel(%s) node(%s) user(%s) from %s - %s%s",
            *map(_on_one_line, (action.name, action.topic, action.channel, action.node, caller.shown_user)),
            caller.remote,
            outcome,
            f": {_on_one_line(detail)}" if detail else "",
        )
        line = _line(action, caller, outcome, detail)
        self.recent.append(line)
        if self._options.audit_log:
            self._append(line)

    def _append(self, line: dict[str, str]) -> None:
        path = self._options.audit_log
        try:
            # Open the file for every record: log rotation may move it at any time.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(descriptor, orjson.dumps(line) + b"\n")
            finally:
                os.close(descriptor)
        except OSError as error:
            self._log.error("failed to write --audit-log %s - %s", path, error.strerror)

    def notify(self, action: Action, caller: Caller) -> None:
        """Queue a notification for the endpoint, if one is set; never blocks."""
        if not self._options.notification_http_endpoint:
            return
        notification: dict[str, Any] = {"action": action.name, "topic": action.topic}
        if action.channel:
            notification["channel"] = action.channel
        if action.node:
            notification["node"] = action.node
        notification["timestamp"] = int(time.time())
        if caller.basic_user:
            notification["user"] = caller.basic_user
        notification["remote_ip"] = caller.remote
        notification["user_agent"] = caller.user_agent
        notification["url"] = caller.url
        notification["via"] = socket.gethostname()
        try:
            self._waiting.put_nowait(notification)
        except asyncio.QueueFull:
            self._log.error("failed to POST notification - the queue is full (%d)", _MAX_WAITING)

    async def _send_notifications(self) -> None:
        while True:
            notification = await self._waiting.get()
            endpoint = self._options.notification_http_endpoint
            self._log.info("POSTing notification to %s", endpoint)
            try:
                await self._http.fetch(
                    "POST", endpoint, orjson.dumps(notification), {"Content-Type": "application/json"}
                )
            except RequestFailed as error:
                self._log.error("failed to POST notification - %s", error)
            finally:
                self._waiting.task_done()


def _on_one_line(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)


def _line(action: Action, caller: Caller, outcome: str, detail: str) -> dict[str, str]:
    return {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "action": action.name,
        "topic": action.topic,
        "channel": action.channel,
        "node": action.node,
        "outcome": outcome,
        "detail": detail,
        "user": caller.user,
        "basic_user": caller.basic_user,
        "role": caller.role.name.lower(),
        "remote": caller.remote,
        "user_agent": caller.user_agent,
        "url": caller.url,
    }
