"""The OpenAPI descriptions name every route of the daemons and no other, and refer to nothing that is not there."""

import io
import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from openapi_files import DAEMONS, description

from nsqx.log import INFO, Log
from nsqx.net.router import Router
from nsqx.nsqadmin import app
from nsqx.nsqadmin.options import NsqadminOptions as AdminOptions
from nsqx.nsqd import http as nsqd_http
from nsqx.nsqd.memory import MemoryMonitor
from nsqx.nsqd.options import NsqdOptions as NSQDOptions
from nsqx.nsqlookupd import http as lookupd_http
from nsqx.nsqlookupd.lookupd import Lookupd
from nsqx.nsqlookupd.options import NsqlookupdOptions as LookupdOptions

Routes = set[tuple[str, str]]


class Anything:
    """Stands for handlers that are never called."""

    def __getattr__(self, name: str) -> "Anything":
        return Anything()


def build(daemon: str) -> None:
    if daemon == "nsqd":
        broker: Any = SimpleNamespace(options=NSQDOptions(enable_debug_endpoints=True))
        nsqd_http.build_router(broker, MemoryMonitor())
    elif daemon == "nsqlookupd":
        lookupd_http.build_router(Lookupd(LookupdOptions(), Log("", INFO, io.StringIO())))
    else:
        handlers: Any = Anything()
        app._routes(AdminOptions(proxy_graphite=True), handlers)


@pytest.mark.parametrize("daemon", DAEMONS)
def test_every_route_is_described(daemon: str, monkeypatch: pytest.MonkeyPatch) -> None:
    served: Routes = set()

    def add(_router: Router, method: str, path: str, *_handler: Any, **_options: Any) -> None:
        served.add((method, re.sub(r":(\w+)", r"{\1}", path)))

    monkeypatch.setattr(Router, "add", add)
    build(daemon)
    described = {
        (method.upper(), path) for path, operations in description(daemon)["paths"].items() for method in operations
    }
    assert described == served


@pytest.mark.parametrize("daemon", DAEMONS)
def test_references_and_names_are_sound(daemon: str) -> None:
    document = description(daemon)
    assert document["openapi"].startswith("3.1.")
    text = json.dumps(document)
    for reference in set(re.findall(r'"\$ref": "#/components/schemas/(\w+)"', text)):
        assert reference in document["components"]["schemas"]
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(names) == len(set(names))
    tags = {tag["name"] for tag in document["tags"]}
    for path, each in document["paths"].items():
        for operation in each.values():
            assert set(operation["tags"]) <= tags
            in_path = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}
            assert in_path == set(re.findall(r"{(\w+)}", path))
            assert "200" in operation["responses"]
