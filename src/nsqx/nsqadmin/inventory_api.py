"""``/api/inventory``: the known nsqds, and the messages of missing ones; and an action to forget an nsqd."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqx.errors import HTTPError
from nsqx.nsqadmin import audit
from nsqx.nsqadmin.audit import Action, Audit
from nsqx.nsqadmin.request_context import RequestContext, json_response

if TYPE_CHECKING:
    from starlette.responses import Response

    from nsqx.nsqadmin.poller import Poller

_MAX_TOPICS = 100


class InventoryAPI:
    """Known and missing nsqds."""

    def __init__(self, poller: Poller | None, records: Audit) -> None:
        """Without a poller no nsqd is known, and every route here answers 404."""
        self._poller = poller
        self._audit = records

    async def inventory(self, _context: RequestContext) -> Response:
        """Every nsqd that is known or queried; for missing nsqds, the topics with most messages."""
        inventory = self._require_poller().inventory
        missing = {each["address"]: each for each in inventory.missing}
        nodes = [
            {
                "address": address,
                "is_missing": address in missing,
                "hostname": node.hostname if node is not None else "",
                "first_seen_s": node.first_seen_s if node is not None else None,
                "last_seen_s": node.last_seen_s if node is not None else None,
                "reason": missing[address]["reason"] if address in missing else "",
                "stranded_topics": inventory.stranded_topics(address, _MAX_TOPICS) if address in missing else [],
            }
            for address in sorted(inventory.known.keys() | missing.keys())
            for node in (inventory.known.get(address),)
        ]
        return json_response({"nodes": nodes, "message": ""})

    async def act(self, context: RequestContext) -> Response:
        """Forget an nsqd: 404 if it is unknown, 409 if the cluster still lists it."""
        poller = self._require_poller()
        address = context.params["node"]
        if (await context.fields({"action": str})).get("action", "") != "forget":
            raise HTTPError(400, "INVALID_ACTION")
        action = Action("forget_node", "", node=address)
        if not poller.forget(address):
            refused = HTTPError(409, "NODE_IS_LISTED") if poller.inventory.is_listed(address) else None
            refused = refused or HTTPError(404, "NODE_NOT_FOUND")
            self._audit.record(action, context.caller, audit.FAILED, refused.code)
            raise refused
        poller.wake()
        self._audit.record(action, context.caller, audit.DONE)
        self._audit.notify(action, context.caller)
        return json_response({"message": ""})

    def _require_poller(self) -> Poller:
        if self._poller is None:
            raise HTTPError(404, "HISTORY_DISABLED")
        return self._poller
