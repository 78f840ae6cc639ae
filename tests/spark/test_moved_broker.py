"""Redeliveries of an nsqd that crashed and restarted with another address are recognised."""

from __future__ import annotations

import pytest
from streams import bodies, make_channel, publish, source_options
from test_receiver import LONG_S, RunningReceiver, channel_is_empty

from daemons import require_go, wait_until

COUNT = 10_300
# A crash loses FINs and attempt counts that were not synced. Go nsqd syncs after so many operations, nsqx within 100 ms
# after them. The second number is not reached, so nsqx saves positions only when it creates the file.
SYNC_EVERY = {"go": 2500, "nsqx": 10 * COUNT}


@pytest.fixture(params=["go", "nsqx"])
def implementation(request):
    if request.param == "go":
        require_go()
    return request.param


def start_nsqd(fleet, implementation, data_path, *flags):
    sync_flags = (f"--sync-every={SYNC_EVERY[implementation]}", "--sync-timeout=1h")
    return fleet.nsqd(implementation, f"--data-path={data_path}", "--mem-queue-size=0", *sync_flags, *flags)


def options_of(nsqd, topic, directory):
    return source_options(nsqd, topic, directory, **{"maxInFlight": "500", "nsq.msg_timeout": "2s"})


@pytest.mark.parametrize("restarts_query", [False, True], ids=["in one run", "between runs"])
def test_redeliveries_from_a_new_address_are_no_duplicates(fleet, implementation, topic, tmp_path, restarts_query):
    data_path = tmp_path / "data"
    data_path.mkdir()
    lookupd = fleet.nsqlookupd("nsqx")
    flag = f"--lookupd-tcp-address={lookupd.tcp_address}"
    nsqd = start_nsqd(fleet, implementation, data_path, flag)
    make_channel(nsqd, topic)
    publish(nsqd, topic, bodies(0, COUNT))
    wait_until(lambda: list(data_path.glob("*.meta.dat")), "the positions are saved, with all messages unfinished")
    options = options_of(nsqd, topic, tmp_path)
    del options["nsq.nsqd"]
    options |= {"nsq.lookupd": lookupd.http_address, "nsq.lookupd_poll_interval": "100ms"}
    wait_until(lambda: nsqd.tcp_port in _ports(lookupd, topic), "the topic is registered", LONG_S)
    with RunningReceiver(options) as running:
        wait_until(lambda: running.receiver.rows == COUNT, "all messages are received", LONG_S)
        wait_until(lambda: channel_is_empty(nsqd, topic), "all messages are finished", LONG_S)
        nsqd.kill()
        if not restarts_query:
            moved = start_nsqd(fleet, implementation, data_path, flag)
            _expect_redeliveries_recognised(running, moved, topic)
    if restarts_query:
        moved = start_nsqd(fleet, implementation, data_path, flag)
        wait_until(lambda: moved.tcp_port in _ports(lookupd, topic), "the topic is registered", LONG_S)
        with RunningReceiver(options) as running:
            _expect_redeliveries_recognised(running, moved, topic)
    assert moved.tcp_address != nsqd.tcp_address
    assert running.values() == bodies(0, COUNT)


def _ports(lookupd, topic):
    answer = lookupd.request("GET", f"/lookup?topic={topic}")
    return [each["tcp_port"] for each in answer.json()["producers"]] if answer.status == 200 else []


def _expect_redeliveries_recognised(running, nsqd, topic):
    """Wait for redeliveries after the crash and check that all of them are recognised."""
    wait_until(
        lambda: running.receiver.known_count or running.receiver.rows > COUNT, "messages are redelivered", LONG_S
    )
    wait_until(lambda: channel_is_empty(nsqd, topic), "all messages are finished", LONG_S)
    assert running.receiver.rows == COUNT, f"{running.receiver.rows - COUNT} rows are duplicates"
