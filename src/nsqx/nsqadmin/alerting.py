"""The alerts of one cluster at work: evaluated after every poll, logged, stored and sent; and their route.

Owns the file in which alerts survive a restart. The rules and the states are elsewhere, without I/O.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import orjson

from nsqx.errors import HTTPError
from nsqx.nsqadmin.alerts import FIRING, AlertBook
from nsqx.nsqadmin.atomic_file import replace_file, set_aside
from nsqx.nsqadmin.request_context import RequestContext, json_response

if TYPE_CHECKING:
    from starlette.responses import Response

    from nsqx.log import Log
    from nsqx.nsqadmin.alert_rules import AlertRules
    from nsqx.nsqadmin.alert_webhook import AlertWebhook
    from nsqx.nsqadmin.poller import Poller

_MAX_SHOWN = 1000
_SAVE_S = 30.0
_FINAL_SAVE_TIMEOUT_S = 2.0


class Alerting:
    """Evaluates the rules after every poll. ``start`` it in a running event loop, ``stop`` it once."""

    def __init__(self, poller: Poller, rules: AlertRules, path: str, webhook: AlertWebhook | None, log: Log) -> None:
        """With an empty path the alerts are kept in memory only."""
        self.book = AlertBook(rules)
        self.webhook = webhook
        self._poller = poller
        self._path = path
        self._log = log
        self._saved_s = 0.0
        self._saving: asyncio.Task[None] | None = None
        self._has_failed = False
        poller.after_poll.append(self.evaluate)

    def start(self) -> None:
        """Load the alerts, and start the webhook."""
        self._load()
        self._saved_s = time.monotonic()
        if self.webhook is not None:
            self.webhook.start()

    async def stop(self) -> None:
        """Save the alerts, and stop the webhook."""
        if self.webhook is not None:
            await self.webhook.stop()
        try:
            async with asyncio.timeout(_FINAL_SAVE_TIMEOUT_S):
                if self._saving is not None:
                    await self._saving
                await self._save()
        except TimeoutError:
            self._log.warn("saving the alerts timed out")

    def evaluate(self, is_measured: bool) -> None:
        """Examine the last poll; log, store and send what has changed."""
        poller = self._poller
        changed = self.book.evaluate(
            poller.cluster_stats, poller.inventory.missing, poller.disks, time.time(), is_measured=is_measured
        )
        for alert in changed:
            summary = alert.rule.summary(alert.key.subject, alert.value)
            if alert.state == FIRING:
                self._log.warn("ALERT %s (%s): %s", alert.rule.name, alert.rule.severity, summary)
            else:
                self._log.info("ALERT %s (%s) is resolved: %s", alert.rule.name, alert.rule.severity, alert.key.subject)
        if changed and self.webhook is not None:
            self.webhook.send(changed)
        is_due = self.book.active and time.monotonic() - self._saved_s >= _SAVE_S
        if (changed or is_due) and (self._saving is None or self._saving.done()):
            self._saving = asyncio.create_task(self._save())

    def _load(self) -> None:
        if not self._path:
            return
        try:
            with open(self._path, "rb") as file:
                self.book.load(orjson.loads(file.read()))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            self._log.warn("cannot read the alerts in %s: %s", self._path, error.strerror)
        except ValueError as error:
            self._log.warn("invalid file of alerts %s (%s): renamed to %s", self._path, error, set_aside(self._path))

    async def _save(self) -> None:
        self._saved_s = time.monotonic()
        if not self._path:
            return
        data = orjson.dumps(self.book.dump())
        try:
            await asyncio.to_thread(replace_file, self._path, (data,))
        except OSError as error:
            if not self._has_failed:
                reason = error.strerror or str(error)
                self._log.warn("cannot write %s: %s; the alerts are kept in memory", self._path, reason)
            self._has_failed = True
        else:
            self._has_failed = False


class AlertAPI:
    """``/api/alerts``."""

    def __init__(self, alerting: Alerting | None) -> None:
        """Without a poller there are no alerts, and the route answers 404."""
        self._alerting = alerting

    async def alerts(self, _context: RequestContext) -> Response:
        """The active alerts, the latest resolved ones, and the rules."""
        alerting = self._alerting
        if alerting is None:
            raise HTTPError(404, "HISTORY_DISABLED")
        book, webhook = alerting.book, alerting.webhook
        active = book.sorted_alerts()
        return json_response(
            {
                "counts": book.counts,
                "alerts": [each.document() for each in active[:_MAX_SHOWN]],
                "omitted": max(0, len(active) - _MAX_SHOWN),
                "resolved": [each.document() for each in reversed(book.resolved)],
                "rules": [rule.document() for rule in book.rules.general()],
                "webhook": None if webhook is None else _webhook(webhook),
                "message": "",
            }
        )


def _webhook(webhook: AlertWebhook) -> dict[str, Any]:
    return {"waiting": webhook.waiting_count, "problem": webhook.problem}
