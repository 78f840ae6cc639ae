"""The answers of running daemons agree with the OpenAPI documents that they serve."""

from collections.abc import Iterator

import pytest

from daemons import Daemon, Fleet
from openapi_documents import DAEMONS

pytest.importorskip("schemathesis", reason="the HTTP contracts need schemathesis: pip install 'nsqx[test]'")

from contracts import check_contract, undocumented_code  # noqa: E402

EXAMPLES = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, Daemon]]:
    fleet = Fleet()
    lookupd = fleet.nsqlookupd("nsqx")
    nsqd = fleet.nsqd("nsqx", f"--lookupd-tcp-address={lookupd.tcp_address}", "--enable-debug-endpoints")
    nsqadmin = fleet.nsqadmin("nsqx", f"--lookupd-http-address={lookupd.http_address}", "--poll-interval=1s")
    yield {"nsqd": nsqd, "nsqlookupd": lookupd, "nsqadmin": nsqadmin}
    fleet.close()


# Schemathesis sometimes uses the random module.
@pytest.mark.filterwarnings("ignore:Do not use the .random. module inside strategies")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", DAEMONS)
def test_every_response_is_described(name: str, cluster: dict[str, Daemon]) -> None:
    verdict = check_contract(f"http://{cluster[name].http_address}", EXAMPLES)
    assert verdict.violations == {}
    assert verdict.requests > verdict.operations
    assert "panic" not in cluster[name].log
    assert "Traceback" not in cluster[name].log


def test_an_error_code_that_the_document_does_not_list_is_found() -> None:
    description = "- `EOF`: the body is empty\n- `json: cannot unmarshal ...`: the body is not an object"
    assert not undocumented_code(description, "EOF")
    assert not undocumented_code(description, "json: cannot unmarshal string into an object")
    assert undocumented_code(description, "TOPIC_NOT_FOUND")
