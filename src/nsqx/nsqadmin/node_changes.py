"""Changes through routes that not every nsqd has: who asked for them, and the result on each node.

Every change is recorded and sent to the notification endpoint, as the operations of NSQ are. A preview changes nothing
and is not recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsqx.nsqadmin import audit
from nsqx.nsqadmin.api import warning
from nsqx.nsqadmin.node_answers import NodeAnswer, ask_node
from nsqx.nsqadmin.request_context import RequestContext, json_response

if TYPE_CHECKING:
    from starlette.responses import Response

    from nsqx.cluster.daemon import Query
    from nsqx.cluster.nsqd import NsqdClient
    from nsqx.nsqadmin.audit import Action, Audit
    from nsqx.nsqadmin.single_flight import SingleFlight


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A request to one nsqd."""

    nsqd: NsqdClient
    method: str
    path: str
    query: Query
    body: bytes = b""

    async def run(self) -> NodeAnswer:
        """Send the request. Never raises RequestFailed."""
        return await ask_node(self.nsqd, self.method, self.path, self.query, self.body)


class NodeChanges:
    """Runs changes on several nsqds at once."""

    def __init__(self, single_flight: SingleFlight, records: Audit) -> None:
        self._single_flight = single_flight
        self._audit = records

    async def preview(self, changes: Sequence[NodeChange], keys: Sequence[str]) -> Response:
        """Ask for the effect of changes, and answer with that on each node. Needs ``dry_run`` in their queries."""
        return json_response(_document(await _run(changes), keys, ""))

    async def apply(
        self,
        context: RequestContext,
        action: Action,
        changes: Sequence[NodeChange],
        keys: Sequence[str],
        problems: Sequence[str],
        detail: str = "",
    ) -> Response:
        """Run changes and answer with the result on each node; 502 if all failed.

        ``keys`` are those of nsqd's answers that the result has. ``detail`` is for the audit record.
        """
        outcome, reason = audit.FAILED, "interrupted"
        try:
            answers = await _run(changes)
            failures = [f"{answer.address}: {answer.error}" for answer in answers if answer.code]
            if len(failures) == len(answers):
                reason = "UPSTREAM_ERROR: " + "; ".join(failures)
                return json_response(_document(answers, keys, reason), 502)
            outcome = audit.PARTLY if failures else audit.DONE
            reason = "; ".join(failures)
            return json_response(_document(answers, keys, warning([*problems, *failures])))
        finally:
            self._single_flight.forget()
            self._audit.record(action, context.caller, outcome, "; ".join(filter(None, (detail, reason))))
            if outcome != audit.FAILED:
                self._audit.notify(action, context.caller)


async def _run(changes: Sequence[NodeChange]) -> list[NodeAnswer]:
    return await asyncio.gather(*(change.run() for change in changes))


def _document(answers: Sequence[NodeAnswer], keys: Sequence[str], message: str) -> dict[str, Any]:
    outcomes = [
        {
            "kind": "nsqd",
            "address": answer.address,
            "code": answer.code,
            "error": answer.error,
            "result": None if answer.code else {key: answer.document.get(key) for key in keys},
        }
        for answer in answers
    ]
    return {"outcomes": outcomes, "message": message}
