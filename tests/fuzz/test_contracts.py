"""The descriptions that ship with the package say what the daemons do: every route, and every answer."""

from collections.abc import Iterator

import pytest
from openapi_files import DAEMONS

from daemons import Daemon, Fleet

pytest.importorskip("schemathesis", reason="the HTTP contracts need schemathesis: pip install 'nsqx[test]'")

from contracts import check_contract  # noqa: E402

EXAMPLES = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, Daemon]]:
    fleet = Fleet()
    lookupd = fleet.nsqlookupd("nsqx")
    nsqd = fleet.nsqd("nsqx", f"--lookupd-tcp-address={lookupd.tcp_address}", "--enable-debug-endpoints")
    nsqadmin = fleet.nsqadmin("nsqx", f"--lookupd-http-address={lookupd.http_address}", "--poll-interval=1s")
    yield {"nsqd": nsqd, "nsqlookupd": lookupd, "nsqadmin": nsqadmin}
    fleet.close()


# Schemathesis draws from it now and then.
@pytest.mark.filterwarnings("ignore:Do not use the .random. module inside strategies")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", DAEMONS)
def test_every_answer_is_in_the_description(name: str, cluster: dict[str, Daemon]) -> None:
    verdict = check_contract(name, f"http://{cluster[name].http_address}", EXAMPLES)
    assert verdict.violations == {}
    assert verdict.requests > verdict.operations
    assert "panic" not in cluster[name].log
    assert "Traceback" not in cluster[name].log
