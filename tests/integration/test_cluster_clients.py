"""Questions to real nsqlookupds and nsqds over HTTP, of which one is down."""

from collections.abc import Iterator
from typing import Any

import pytest

from daemons import IMPLEMENTATIONS, Daemon, Fleet, free_port, wait_until
from nsqx.cluster.daemon import Change
from nsqx.cluster.fan_out import ask_all
from nsqx.cluster.http import HTTPSession
from nsqx.cluster.lookupd import LookupdClient
from nsqx.cluster.node import merge_nodes
from nsqx.cluster.nsqd import NsqdClient
from nsqx.errors import RequestFailed

HTTP = HTTPSession()


def names(lookupd: Daemon, target: str, key: str) -> Any:
    return lookupd.request("GET", target).json()[key]


class Cluster:
    def __init__(self, fleet: Fleet, implementation: str) -> None:
        self.lookupds = [fleet.nsqlookupd(implementation) for _ in range(2)]
        flags = [f"--lookupd-tcp-address={each.tcp_address}" for each in self.lookupds]
        self.nsqds = [fleet.nsqd(implementation, *flags) for _ in range(2)]
        self.nowhere = f"127.0.0.1:{free_port()}"
        for lookupd in self.lookupds:
            wait_until(lambda lookupd=lookupd: len(names(lookupd, "/nodes", "producers")) == 2, "both are registered")

    def lookupd_clients(self) -> list[LookupdClient]:
        return LookupdClient.at(HTTP, [*(each.http_address for each in self.lookupds), self.nowhere])

    def nsqd_clients(self) -> list[NsqdClient]:
        return NsqdClient.at(HTTP, [self.nowhere, *(each.http_address for each in self.nsqds)])


@pytest.fixture(scope="module", params=IMPLEMENTATIONS)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    fleet = Fleet()
    yield Cluster(fleet, request.param)
    fleet.close()


def tcp_addresses(daemons: list[Daemon]) -> list[str]:
    return sorted(each.tcp_address for each in daemons)


async def test_a_daemon_that_is_down_does_not_affect_the_others(cluster: Cluster) -> None:
    answers = await ask_all(cluster.lookupd_clients(), LookupdClient.nodes)
    refused = f"dial tcp {cluster.nowhere}: connect: connection refused"
    assert answers.problems == [f"nsqlookupd {cluster.nowhere}: {refused}"]
    assert [str(error) for _, error in answers.failures] == [f'Get "http://{cluster.nowhere}/nodes": {refused}']
    assert [address for address, _ in answers.found] == [each.http_address for each in cluster.lookupds]
    assert sorted(node.tcp_address for node in merge_nodes(answers.values)) == tcp_addresses(cluster.nsqds)
    assert answers.require_one() is answers
    with pytest.raises(RequestFailed, match=f"nsqlookupd {cluster.nowhere}: "):
        answers.require_all()
    nothing = await ask_all(LookupdClient.at(HTTP, [cluster.nowhere]), LookupdClient.topics)
    with pytest.raises(RequestFailed, match=f"nsqlookupd {cluster.nowhere}: "):
        nothing.require_one()


async def test_the_life_of_a_topic(cluster: Cluster, topic: str) -> None:
    lookupd = cluster.lookupd_clients()[0]
    nsqd = cluster.nsqd_clients()[1]
    assert await lookupd.lookup(topic) == []
    await nsqd.apply(Change("create", topic))
    await nsqd.apply(Change("create", topic, "c"))
    await nsqd.apply(Change("pause", topic, "c"))
    await nsqd.publish(topic, b"one")
    await nsqd.publish(topic, b"later", 60_000)
    entry = (await nsqd.stats(topic))[0]
    (channel,) = entry["channels"]
    assert (entry["topic_name"], entry["message_count"]) == (topic, 2)
    assert (channel["channel_name"], channel["paused"]) == ("c", True)
    wait_until(lambda: names(cluster.lookupds[0], f"/channels?topic={topic}", "channels") == ["c"], "registered")
    assert topic in await lookupd.topics()
    assert await lookupd.channels(topic) == ["c"]
    (node,) = await lookupd.lookup(topic)
    assert (node.http_address, node.tcp_port) == (nsqd.address, (await nsqd.info()).tcp_port)
    await lookupd.apply(Change("tombstone", topic, node=node.http_address))
    assert await lookupd.lookup(topic) == []
    await nsqd.apply(Change("delete", topic, "c"))
    await nsqd.apply(Change("delete", topic))
    assert await nsqd.stats(topic) == []
    with pytest.raises(RequestFailed, match="got response 404 Not Found .*TOPIC_NOT_FOUND") as caught:
        await nsqd.apply(Change("empty", topic))
    assert caught.value.status == 404


async def test_a_ping_answers_if_the_daemon_runs(cluster: Cluster) -> None:
    answers = await ask_all(cluster.nsqd_clients(), NsqdClient.ping)
    assert [address for address, _ in answers.found] == [each.http_address for each in cluster.nsqds]
    assert [daemon.address for daemon, _ in answers.failures] == [cluster.nowhere]
