"""The OpenAPI descriptions against running daemons: requests made up from a description, answers held against it.

schemathesis makes the requests, sound ones and unsound ones. A daemon violates its description by a status, a content
type or a body that the description does not name. Streams, which never end, and profiles, which take half a minute,
are left out.
"""

from dataclasses import dataclass, field
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from hypothesis.reporting import with_reporter
from openapi_files import description
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
ENDLESS = {"stream", "tail", "pprofProfile"}
# What any path may answer, because it is not the path that was meant.
ANYWHERE = (301, 307, 404, 405)
NOBODY = "127.0.0.1:1"
REQUEST_TIMEOUT_S = 20.0


@dataclass
class Verdict:
    """How many requests were made, and what was violated, by operation."""

    requests: int = 0
    operations: int = 0
    violations: dict[str, str] = field(default_factory=dict)


def check_contract(daemon: str, base_url: str, examples: int, seed: int | None = None) -> Verdict:
    """Ask every operation so many times, half of them with what the description does not allow."""
    schema = schemathesis.openapi.from_dict(description(daemon))
    verdict = Verdict()
    with requests.Session() as session:
        session.trust_env = False
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


def _ask(
    operation: Any, mode: Any, base_url: str, session: Any, examples: int, verdict: Verdict, seed: int | None
) -> str:
    documented = operation.definition.raw["responses"]
    # nsqadmin asks the nsqd that is named for its name, wherever that is.
    named = {"path_parameters": {"node": NOBODY}} if operation.label == "DELETE /api/nodes/{node}" else {}

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

    try:
        with with_reporter(lambda _line: None):
            ask()
    except Unsatisfiable:  # there is nothing that its description does not allow
        return ""
    except (FailureGroup, Failure) as failure:
        return " ".join(str(failure).split())[:600]
    return ""
