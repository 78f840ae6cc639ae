import pytest

from nsqx.cluster.http import HTTPSession
from nsqx.tools.cluster_address import ClusterAddress, find_http, find_tcp, http_address
from nsqx.tools.table import plain_table
from nsqx.tools.utility import UtilityFailed


async def test_flags_override_the_environment() -> None:
    environment = {"NSQX_LOOKUPD": "l:1", "NSQX_NSQD": "n:1"}
    assert await find_tcp(["x:1"], [], environment) == ClusterAddress([], ["x:1"])
    assert await find_tcp([], ["y:1"], environment) == ClusterAddress(["y:1"], [])
    with pytest.raises(UtilityFailed, match="not both"):
        await find_tcp(["x:1"], ["y:1"], environment)


async def test_addresses_are_read_from_the_environment() -> None:
    assert await find_tcp([], [], {"NSQX_LOOKUPD": "l:1, m:2,"}) == ClusterAddress(["l:1", "m:2"])
    assert await find_tcp([], [], {"NSQX_NSQD": "n:4150,o:1"}) == ClusterAddress([], ["n:4150", "o:1"])
    assert await find_http([], [], HTTPSession(), {"NSQX_NSQD": "n:4150,[::1]:1"}) == ["n:4151", "[::1]:2"]


@pytest.mark.parametrize("address", ["n", "http://n:1", "n:port", "/run/nsqd.sock"])
def test_invalid_tcp_addresses_are_rejected(address: str) -> None:
    with pytest.raises(UtilityFailed):
        http_address(address)


def test_a_plain_table_aligns_its_columns() -> None:
    assert plain_table(("name", "n"), [("a", "1"), ("longer", "234")]) == "name      n\na         1\nlonger  234\n"
    assert plain_table(("name", "n"), []) == "name  n\n"
