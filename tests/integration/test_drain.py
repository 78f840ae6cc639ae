"""Draining a running nsqd: publishes are refused, and consumers finish what it has."""

from typing import Any

import pytest

from daemons import Daemon, Fleet, wait_until
from rawclient import ERROR, OK, Frame, RawClient, dpub, mpub, pub, sub

STORES = ("classic", "log")
DRAINING = {"x-nsq-reason": "draining"}


@pytest.fixture(params=STORES)
def nsqd(request: pytest.FixtureRequest, fleet: Fleet) -> Daemon:
    return fleet.nsqd("nsqx", f"--store={request.param}")


def drain(nsqd: Daemon, **query: str) -> Any:
    return nsqd.request("POST", "/drain", query=query).json()


def state(nsqd: Daemon) -> Any:
    return nsqd.request("GET", "/drain").json()


def test_a_drain_ends_when_consumers_have_finished_everything(nsqd: Daemon, topic: str) -> None:
    nsqd.post("/topic/create", topic=topic)
    nsqd.post("/channel/create", topic=topic, channel="c")
    for body in (b"1", b"2"):
        nsqd.post("/pub", body, topic=topic)
    nsqd.post("/pub", b"3", topic=topic, defer="300")
    begun = drain(nsqd)
    assert (begun["draining"], begun["registered"], begun["removable"]) == (True, False, False)
    assert begun["messages"] == 3
    remaining = {"topic": topic, "channel": "c", "depth": 2, "in_flight": 0, "deferred": 1, "consumers": 0}
    assert begun["remaining"] == [remaining]
    with RawClient(nsqd.tcp_address) as consumer:
        assert consumer.sub(topic, "c") == OK
        consumer.rdy(1)
        consumer.req(consumer.read_message().id, 100)  # a requeued message is delivered again
        bodies = set()
        for _ in range(3):
            message = consumer.read_message()
            bodies.add(message.body)
            consumer.fin(message.id)
        wait_until(lambda: state(nsqd)["removable"], "the drain has ended")
    assert bodies == {b"1", b"2", b"3"}
    nsqd.wait_for_log("DRAIN: no messages are left, this nsqd can be removed")


def test_a_draining_nsqd_refuses_every_publish_and_no_other_command(nsqd: Daemon, topic: str) -> None:
    nsqd.post("/pub", b"1", topic=topic)
    with RawClient(nsqd.tcp_address) as producer:
        producer.send(pub(topic, b"2"))
        assert producer.read_frame() == OK
        drain(nsqd)
        producer.send(pub(topic, b"3"))  # the session has cached the topic
        assert producer.read_frame() == Frame(ERROR, b"E_PUB_FAILED PUB failed draining")
    refused = (
        (pub(topic, b"4"), "PUB"),
        (mpub(topic, [b"5"]), "MPUB"),
        (dpub(topic, 100, b"6"), "DPUB"),
        (pub(f"{topic}_new", b"7"), "PUB"),
        (sub(f"{topic}_new", "c"), "SUB"),
    )
    for command, name in refused:
        with RawClient(nsqd.tcp_address) as client:
            client.send(command)
            assert client.read_frame() == Frame(ERROR, f"E_{name}_FAILED {name} failed draining".encode())
    for path, name in (("/pub", topic), ("/mpub", topic), ("/pub", f"{topic}_new"), ("/topic/create", f"{topic}_new")):
        response = nsqd.request("POST", path, b"8", query={"topic": name})
        assert (response.status, response.json()) == (503, {"message": "EXITING"})
        assert DRAINING.items() <= response.headers.items()
    with RawClient(nsqd.tcp_address) as consumer:
        assert consumer.sub(topic, "c") == OK
        consumer.rdy(5)
        assert {consumer.read_message().body for _ in range(2)} == {b"1", b"2"}
    assert [entry["topic_name"] for entry in nsqd.stats()["topics"]] == [topic]


def test_a_failed_message_still_becomes_a_dead_letter(fleet: Fleet, topic: str) -> None:
    for store in STORES:
        nsqd = fleet.nsqd("nsqx", f"--store={store}", "--max-attempts=1")
        nsqd.post("/pub", b"1", topic=topic)
        drain(nsqd)
        with RawClient(nsqd.tcp_address) as consumer:
            assert consumer.sub(topic, "c") == OK
            consumer.rdy(1)
            consumer.req(consumer.read_message().id, 0)
            wait_until(lambda nsqd=nsqd: nsqd.channel_stats(f"{topic}.dead", "dead"), "the letter is there")
        remaining = wait_until(lambda nsqd=nsqd: state(nsqd)["remaining"], "the letter is left")
        assert [(each["topic"], each["channel"]) for each in remaining] == [(f"{topic}.dead", "dead")]


def test_a_drain_can_be_cancelled_and_ends_with_a_restart(nsqd: Daemon, topic: str) -> None:
    nsqd.post("/pub", b"1", topic=topic)
    assert nsqd.request("GET", "/ready").status == 200
    drain(nsqd)
    ready = nsqd.request("GET", "/ready")
    assert (ready.status, ready.body) == (503, b"NOK - draining")
    assert nsqd.request("GET", "/ping").status == 200
    assert nsqd.request("POST", "/undrain").json()["draining"] is False
    assert nsqd.request("POST", "/undrain").json()["draining"] is False
    nsqd.post("/pub", b"2", topic=topic)
    assert nsqd.request("GET", "/ready").status == 200
    assert nsqd.topic_stats(topic)["depth"] == 2


def test_a_draining_nsqd_leaves_nsqlookupd_and_returns(fleet: Fleet, topic: str) -> None:
    lookupd = fleet.nsqlookupd("nsqx")
    nsqd = fleet.nsqd("nsqx", f"--lookupd-tcp-address={lookupd.tcp_address}")

    def is_listed() -> bool:
        return any(node["tcp_port"] == nsqd.tcp_port for node in lookupd.request("GET", "/nodes").json()["producers"])

    nsqd.post("/topic/create", topic=topic)
    wait_until(is_listed, "nsqd is registered")
    assert drain(nsqd, stay_registered="true")["registered"] is True
    assert is_listed()
    assert drain(nsqd)["registered"] is False
    wait_until(lambda: not is_listed(), "nsqd has left")
    # A change of the addresses does not end that.
    address = f'["{lookupd.tcp_address}"]'.encode()
    assert nsqd.request("PUT", "/config/nsqlookupd_tcp_addresses", address).status == 200
    nsqd.post("/undrain")
    wait_until(is_listed, "nsqd has returned")


def test_an_invalid_value_is_refused(nsqd: Daemon) -> None:
    response = nsqd.request("POST", "/drain", query={"stay_registered": "perhaps"})
    assert (response.status, response.json()) == (400, {"message": "INVALID_STAY_REGISTERED"})
    assert state(nsqd)["draining"] is False
