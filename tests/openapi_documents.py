"""The OpenAPI documents of the three daemons, generated from their route tables without a running daemon."""

import io
from types import SimpleNamespace
from typing import Any

from nsqx.log import INFO, Log
from nsqx.net.router import Router
from nsqx.nsqadmin import app
from nsqx.nsqadmin import openapi as nsqadmin_openapi
from nsqx.nsqadmin.options import NsqadminOptions
from nsqx.nsqd import http as nsqd_http
from nsqx.nsqd import openapi as nsqd_openapi
from nsqx.nsqd.memory import MemoryMonitor
from nsqx.nsqd.options import NsqdOptions
from nsqx.nsqlookupd import http as lookupd_http
from nsqx.nsqlookupd import openapi as lookupd_openapi
from nsqx.nsqlookupd.lookupd import Lookupd
from nsqx.nsqlookupd.options import NsqlookupdOptions

DAEMONS = ("nsqd", "nsqlookupd", "nsqadmin")


class AnyHandler:
    """Stands for the handlers of a route table, which need no implementation here. Every attribute exists."""

    def __getattr__(self, name: str) -> "AnyHandler":
        return AnyHandler()


def router_of(daemon: str, **options: Any) -> Router:
    """Return the route table of a daemon with these options."""
    if daemon == "nsqd":
        broker: Any = SimpleNamespace(options=NsqdOptions(**options))
        return nsqd_http.build_router(broker, MemoryMonitor())
    if daemon == "nsqlookupd":
        return lookupd_http.build_router(Lookupd(NsqlookupdOptions(**options), Log("", INFO, io.StringIO())))
    handlers: Any = AnyHandler()
    return app._routes(NsqadminOptions(**options), handlers)


def generate(daemon: str, **options: Any) -> dict[str, Any]:
    """Return the document that a daemon with these options serves."""
    router = router_of(daemon, **options)
    if daemon == "nsqd":
        return nsqd_openapi.describe(router)
    if daemon == "nsqlookupd":
        return lookupd_openapi.describe(router)
    return nsqadmin_openapi.describe(router, options.get("base_path", "/"))


def without_other_fields(document: dict[str, Any]) -> dict[str, Any]:
    """Change ``document`` so that objects in responses may have only the documented fields. Return it."""
    for name, schema in document["components"]["schemas"].items():
        if "properties" in schema and not name.endswith("Body"):
            schema["additionalProperties"] = False
    return document
