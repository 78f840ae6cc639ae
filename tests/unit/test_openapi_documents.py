"""The OpenAPI documents of the daemons: valid, complete, and equal to the route tables."""

import re
import subprocess
import sys
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from nsqx.nsqadmin import openapi as nsqadmin_openapi
from nsqx.nsqd import openapi as nsqd_openapi
from nsqx.nsqlookupd import openapi as lookupd_openapi
from openapi_documents import DAEMONS, generate, router_of

# Options with which a daemon serves every route.
ALL_ROUTES: dict[str, dict[str, Any]] = {
    "nsqd": {"enable_debug_endpoints": True},
    "nsqlookupd": {},
    "nsqadmin": {"proxy_graphite": True},
}
APIS = {"nsqd": nsqd_openapi.API, "nsqlookupd": lookupd_openapi.API, "nsqadmin": nsqadmin_openapi.API}


def operations(document: dict[str, Any]) -> dict[tuple[str, str], Any]:
    """The operations by method and path."""
    return {
        (method.upper(), path): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def served(daemon: str, **options: Any) -> set[tuple[str, str]]:
    """The method and path of each route, in the notation of OpenAPI."""
    return {(method, re.sub(r":(\w+)", r"{\1}", path)) for method, path, _ in router_of(daemon, **options).routes()}


@pytest.mark.parametrize("daemon", DAEMONS)
def test_the_document_is_valid_openapi(daemon):
    document = generate(daemon, **ALL_ROUTES[daemon])
    assert document["openapi"].startswith("3.1.")
    OpenAPIV31SpecValidator(document).validate()


@pytest.mark.parametrize("daemon", DAEMONS)
def test_every_route_is_described_and_every_description_has_a_route(daemon):
    routes = served(daemon, **ALL_ROUTES[daemon])
    assert operations(generate(daemon, **ALL_ROUTES[daemon])).keys() == routes
    assert {tuple(re.sub(r":(\w+)", r"{\1}", key).split(" ")) for key in APIS[daemon].routes} == routes


@pytest.mark.parametrize(("daemon", "path"), [("nsqd", "/debug/pprof/"), ("nsqadmin", "/render")])
def test_a_route_that_an_option_disables_is_not_described(daemon, path):
    document = generate(daemon)
    assert operations(document).keys() == served(daemon)
    assert path not in document["paths"]
    assert path in generate(daemon, **ALL_ROUTES[daemon])["paths"]


@pytest.mark.parametrize("daemon", DAEMONS)
def test_identifiers_and_tags_are_consistent(daemon):
    document = generate(daemon, **ALL_ROUTES[daemon])
    found = operations(document)
    identifiers = [operation["operationId"] for operation in found.values()]
    assert len(identifiers) == len(set(identifiers))
    tags = {tag["name"] for tag in document["tags"]}
    assert {tag for operation in found.values() for tag in operation["tags"]} == tags


@pytest.mark.parametrize("daemon", DAEMONS)
def test_every_text_is_a_phrase_or_a_sentence(daemon):
    for operation in operations(generate(daemon, **ALL_ROUTES[daemon])).values():
        assert not operation["summary"].endswith(".")
        assert operation.get("description", ".").endswith(".")
        for parameter in operation.get("parameters", ()):
            assert parameter["description"].endswith(".")


def test_routes_that_need_no_token_say_so():
    for daemon in DAEMONS:
        found = operations(generate(daemon))
        assert found["GET", "/ping"]["security"] == []
        assert "401" not in found["GET", "/ping"]["responses"]
        assert "security" not in found["GET", "/openapi.json"]
        assert "401" in found["GET", "/openapi.json"]["responses"]


def test_refusals_follow_the_access_rules():
    nsqd = operations(generate("nsqd"))
    assert "CROSS_ORIGIN" in nsqd["POST", "/pub"]["responses"]["403"]["description"]
    assert "CROSS_ORIGIN" not in nsqd["GET", "/stats"]["responses"]["403"]["description"]
    nsqadmin = operations(generate("nsqadmin"))
    assert "FORBIDDEN" in nsqadmin["DELETE", "/api/topics/{topic}"]["responses"]["403"]["description"]
    assert "FORBIDDEN" not in nsqadmin["GET", "/api/topics"]["responses"]["403"]["description"]


def test_body_limits_are_those_of_the_options():
    nsqd = operations(generate("nsqd", max_msg_size=1234, max_body_size=5678))
    assert (
        "`MSG_TOO_BIG`: the body is larger than 1234 bytes" in nsqd["POST", "/pub"]["responses"]["413"]["description"]
    )
    assert (
        "`BODY_TOO_BIG`: the body is larger than 5678 bytes" in nsqd["POST", "/mpub"]["responses"]["413"]["description"]
    )


def test_the_descriptions_are_imported_only_for_the_document():
    program = "import sys, nsqx.nsqd.daemon, nsqx.nsqlookupd.daemon, nsqx.nsqadmin.daemon; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert not re.findall(r"nsqx\.\S*(?:openapi|json_schema|api_types)", modules)


def test_the_base_path_of_nsqadmin_is_the_server_and_not_in_the_paths():
    under_base = generate("nsqadmin", base_path="/nsq admin")
    assert under_base["servers"][0]["url"] == "/nsq%20admin"
    assert under_base["paths"] == generate("nsqadmin")["paths"]
    assert generate("nsqadmin")["servers"][0]["url"] == "/"
