"""Tests of running daemons against the OpenAPI documents that they serve.

schemathesis generates valid and invalid requests from a document. An answer violates the document if its status,
content type, a field of its body or its error code is not in the document. Streams, which never end, and profiles,
which take half a minute, are left out.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from hypothesis.reporting import with_reporter
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from openapi_documents import without_other_fields

CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
ENDLESS = {"stream", "tail", "pprofProfile"}
# Statuses of a generated path that is not a path of the operation.
ANYWHERE = (301, 307, 404, 405)
CLOSED_ADDRESS = "127.0.0.1:1"
REQUEST_TIMEOUT_S = 20.0


@dataclass
class Verdict:
    """The number of requests and operations, and the first violation of each operation."""

    requests: int = 0
    operations: int = 0
    violations: dict[str, str] = field(default_factory=dict)


def check_contract(base_url: str, examples: int, seed: int | None = None) -> Verdict:
    """Send ``examples`` requests to each operation, half of them invalid."""
    verdict = Verdict()
    with requests.Session() as session:
        session.trust_env = False
        document = session.get(f"{base_url}/openapi.json", timeout=REQUEST_TIMEOUT_S).json()
        schema = schemathesis.openapi.from_dict(without_other_fields(document))
        for result in schema.get_all_operations():
            operation = result.ok()
            if operation.definition.raw["operationId"] in ENDLESS:
                continue
            verdict.operations += 1
            for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
                failure = _ask(operation, mode, base_url, session, max(1, examples // 2), verdict, seed)
                if failure:
                    verdict.violations.setdefault(operation.label, failure)
    return verdict


def undocumented_code(description: str, message: str) -> bool:
    """True if no code in the description of a status begins ``message``."""
    codes = [code.removesuffix("...") for code in re.findall("`([^`]+)`: ", description)]
    return not any(message.startswith(code) for code in codes)


def _ask(
    operation: Any, mode: Any, base_url: str, session: Any, examples: int, verdict: Verdict, seed: int | None
) -> str:
    documented = operation.definition.raw["responses"]
    # nsqadmin sends a request to this address, so it must not be a random one.
    named = {"path_parameters": {"node": CLOSED_ADDRESS}} if operation.label == "DELETE /api/nodes/{node}" else {}

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=seed is None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(case=operation.as_strategy(generation_mode=mode, **named))
    def ask(case: Any) -> None:
        verdict.requests += 1
        answer = case.call(base_url=base_url, session=session, timeout=REQUEST_TIMEOUT_S, allow_redirects=False)
        if answer.status_code not in ANYWHERE or str(answer.status_code) in documented:
            case.validate_response(answer, checks=CHECKS)
            content_type = answer.headers.get("content-type", [""])[0]
            if answer.status_code >= 400 and content_type.startswith("application/json"):
                response = documented[str(answer.status_code)]["description"]
                message = answer.json()["message"]
                assert not undocumented_code(response, message), f"{answer.status_code} {message}"

    try:
        with with_reporter(lambda _line: None):
            ask()
    except Unsatisfiable:  # every request is valid
        return ""
    except (FailureGroup, Failure, AssertionError) as failure:
        return " ".join(str(failure).split())[:600]
    return ""
