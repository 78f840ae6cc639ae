"""OpenAPI documents from a route table. The documents of the daemons are tested in test_openapi_documents.py."""

import pytest

from nsqx.net.openapi import TEXT, APIDoc, Content, Parameter, RouteDoc, build_document, select_errors
from nsqx.net.responses import OK
from nsqx.net.router import Router

ERRORS = {400: {"BAD_NAME": "the name is bad", "BAD_VALUE": "wrong"}, 413: {"BAD_VALUE": "too big"}}
API = APIDoc(
    title="Things",
    summary="Things.",
    description="Things.",
    tags={"things": "Things."},
    routes={
        "GET /things/:thing": RouteDoc("thing", "things", "Return a thing", response=Content("It.", {TEXT: str})),
        "PUT /things/:thing": RouteDoc(
            "change",
            "things",
            "Change a thing",
            query=(Parameter("force", "Do it anyway.", bool),),
            body=Content("The new thing.", {TEXT: str}),
            errors="BAD_NAME, BAD_VALUE",
            other_responses={400: Content("Or a text.", {TEXT: str}), 500: Content("Broken.")},
        ),
    },
    errors=ERRORS,
    path_parameters={
        "thing": Parameter("thing", "A thing."),
        "PUT /things/:thing": Parameter("thing", "A thing that can change."),
    },
)


def router_with(*routes):
    router = Router()
    for method, path in routes:
        router.add(method, path, lambda _request: OK)
    return router


def document_of(*routes):
    return build_document(API, router_with(*routes).routes(), lambda *_: {401: {"NO_TOKEN": "no token"}}, "/base")


def test_only_routes_of_the_router_are_described():
    assert document_of(("GET", "/things/:thing"))["paths"].keys() == {"/things/{thing}"}
    assert document_of(("GET", "/things/:thing"))["paths"]["/things/{thing}"].keys() == {"get"}
    assert document_of(("GET", "/things/:thing"), ("PUT", "/things/:thing"))["paths"]["/things/{thing}"].keys() == {
        "get",
        "put",
    }


def test_a_route_without_description_is_an_error():
    with pytest.raises(ValueError, match="no description of GET /other"):
        document_of(("GET", "/things/:thing"), ("GET", "/other"))


def test_parameters_of_path_and_query():
    paths = document_of(("GET", "/things/:thing"), ("PUT", "/things/:thing"))["paths"]
    thing = {"name": "thing", "in": "path", "required": True, "schema": {"type": "string"}}
    assert paths["/things/{thing}"]["get"]["parameters"] == [{**thing, "description": "A thing."}]
    assert paths["/things/{thing}"]["put"]["parameters"] == [
        {**thing, "description": "A thing that can change."},
        {
            "name": "force",
            "in": "query",
            "required": False,
            "description": "Do it anyway.",
            "schema": {"type": "boolean"},
        },
    ]


def test_errors_are_listed_by_status_with_their_meaning():
    responses = document_of(("PUT", "/things/:thing"))["paths"]["/things/{thing}"]["put"]["responses"]
    assert list(responses) == ["200", "400", "401", "413", "500"]
    assert responses["200"] == {"description": "Done. The response has no body."}
    assert responses["400"]["description"] == "Or a text.\n\n- `BAD_NAME`: the name is bad\n- `BAD_VALUE`: wrong"
    assert responses["400"]["content"].keys() == {"application/json", "text/plain"}
    assert responses["401"]["description"] == "- `NO_TOKEN`: no token"
    assert responses["413"]["description"] == "- `BAD_VALUE`: too big"
    assert responses["500"] == {"description": "Broken."}


def test_an_error_without_meaning_is_an_error():
    with pytest.raises(KeyError, match="UNKNOWN"):
        select_errors(ERRORS, "BAD_NAME, UNKNOWN")


def test_the_server_is_the_given_prefix():
    assert document_of(("GET", "/things/:thing"))["servers"][0]["url"] == "/base"
