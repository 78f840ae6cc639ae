"""An nsqd that crashes and comes back under another address: what it hands out again is recognised."""

from __future__ import annotations

import pytest
from streams import bodies, make_channel, publish, source_options
from test_receiver import LONG_S, Running, channel_is_empty

from daemons import require_go, wait_until

COUNT = 10_300
# Only every 2500th operation is synced, so a crash forgets FINs and counts of attempts.
FLAGS = ("--mem-queue-size=0", "--sync-every=2500", "--sync-timeout=1h")


@pytest.fixture(params=["go", "nsqx"])
def implementation(request):
    if request.param == "go":
        require_go()
    return request.param


def start_nsqd(fleet, implementation, data_path, *flags):
    return fleet.nsqd(implementation, f"--data-path={data_path}", *FLAGS, *flags)


def options_of(nsqd, topic, directory):
    return source_options(nsqd, topic, directory, **{"maxInFlight": "500", "nsq.msg_timeout": "2s"})


@pytest.mark.parametrize("restarts_query", [False, True], ids=["in one run", "between runs"])
def test_nothing_is_doubled(fleet, implementation, topic, tmp_path, restarts_query):
    data_path = tmp_path / "data"
    data_path.mkdir()
    lookupd = fleet.nsqlookupd("nsqx")
    flag = f"--lookupd-tcp-address={lookupd.tcp_address}"
    nsqd = start_nsqd(fleet, implementation, data_path, flag)
    make_channel(nsqd, topic)
    publish(nsqd, topic, bodies(0, COUNT))
    options = options_of(nsqd, topic, tmp_path)
    del options["nsq.nsqd"]
    options |= {"nsq.lookupd": lookupd.http_address, "nsq.lookupd_poll_interval": "100ms"}
    wait_until(lambda: nsqd.tcp_port in _ports(lookupd, topic), "the topic is registered", LONG_S)
    with Running(options) as running:
        wait_until(lambda: running.receiver.rows == COUNT, "all is received", LONG_S)
        wait_until(lambda: channel_is_empty(nsqd, topic), "all is finished", LONG_S)
        nsqd.kill()
        if not restarts_query:
            moved = start_nsqd(fleet, implementation, data_path, flag)
            _expect_known(running, moved, topic)
    if restarts_query:
        moved = start_nsqd(fleet, implementation, data_path, flag)
        wait_until(lambda: moved.tcp_port in _ports(lookupd, topic), "the topic is registered", LONG_S)
        with Running(options) as running:
            _expect_known(running, moved, topic)
    assert moved.tcp_address != nsqd.tcp_address
    assert running.values() == bodies(0, COUNT)


def _ports(lookupd, topic):
    answer = lookupd.request("GET", f"/lookup?topic={topic}")
    return [each["tcp_port"] for each in answer.json()["producers"]] if answer.status == 200 else []


def _expect_known(running, nsqd, topic):
    """The crash has made nsqd hand out messages again; all of them are known."""
    wait_until(lambda: running.receiver.known_count or running.receiver.rows > COUNT, "some come again", LONG_S)
    wait_until(lambda: channel_is_empty(nsqd, topic), "all is finished", LONG_S)
    assert running.receiver.rows == COUNT, f"{running.receiver.rows - COUNT} rows are doubled"
