"""nsqd's side of discovery: its commands and queries to every nsqlookupd; no nsqlookupd can harm nsqd.

Most tests use a fake nsqlookupd, which records every command and can send wrong answers.
"""

import asyncio
import contextlib
import json
import re
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from daemons import Daemon, Fleet, start_nsqd, wait_until, write_metadata
from fakelookupd import CLOSE, OK, RESET, SILENCE, Answer, FakeLookupd, http_answer
from lookup_timeouts import start_nsqd_with_lookup_timeouts
from nsqx.cluster.credentials import Credentials
from nsqx.log import FATAL, Log
from nsqx.nsqd.lookup import MAX_CHANNELS, Lookup
from rawclient import OK as CLIENT_OK
from rawclient import RawClient
from rawlookup import sized

PATIENT_FLAGS = ("--http-client-connect-timeout=50s", "--http-client-request-timeout=50s")


@pytest.fixture
def fake() -> Iterator[FakeLookupd]:
    with FakeLookupd() as lookupd:
        yield lookupd


@pytest.fixture
def second_fake() -> Iterator[FakeLookupd]:
    with FakeLookupd() as lookupd:
        yield lookupd


@pytest.fixture(scope="module")
def nsqd() -> Iterator[Daemon]:
    """One nsqd for the tests that need no flags; ``register_with`` sets its nsqlookupds."""
    with start_nsqd("nsqx") as daemon:
        yield daemon
        assert "internal error" not in daemon.log
        assert "Traceback" not in daemon.log


def lookupd_flag(fake: FakeLookupd) -> str:
    return f"--lookupd-tcp-address={fake.tcp_address}"


def put_addresses(daemon: Daemon, body: bytes) -> int:
    return daemon.request("PUT", "/config/nsqlookupd_tcp_addresses", body).status


def register_with(daemon: Daemon, *fakes: FakeLookupd) -> None:
    """Set the daemon's nsqlookupds, and wait until it has sent IDENTIFY to each."""
    assert put_addresses(daemon, json.dumps([fake.tcp_address for fake in fakes]).encode()) == 200
    for fake in fakes:
        fake.wait_for(lambda each: each.identities, "IDENTIFY")


def wait_until_askable(daemon: Daemon, *fakes: FakeLookupd) -> None:
    """Wait until nsqd has processed the answer to IDENTIFY, which shows when it sends the next command."""
    name = f"ready_{id(fakes)}"
    daemon.post("/topic/create", topic=name)
    for fake in fakes:
        fake.wait_for_commands(f"REGISTER {name}")
        fake.forget()
    daemon.post("/topic/delete", topic=name)
    for fake in fakes:
        fake.wait_for_commands(f"UNREGISTER {name}")
        fake.forget()


def check_flow(daemon: Daemon, topic: str, count: int = 20) -> None:
    """Publish and consume messages of an existing topic, one after the other."""
    with RawClient(daemon.tcp_address) as consumer, RawClient(daemon.tcp_address) as producer:
        assert consumer.sub(topic, "flow") == CLIENT_OK
        consumer.rdy(1)
        for number in range(count):
            assert producer.pub(topic, b"%d" % number) == CLIENT_OK
            message = consumer.read_message()
            assert message.body == b"%d" % number
            consumer.fin(message.id)
    assert daemon.request("GET", "/ping").body == b"OK"


def depth(daemon: Daemon, topic: str, channel: str) -> int | None:
    entry = daemon.channel_stats(topic, channel)
    return entry["depth"] if entry else None


def channel_names(daemon: Daemon, topic: str) -> set[str]:
    return {entry["channel_name"] for entry in daemon.topic_stats(topic)["channels"]}


def test_identify_describes_the_nsqd(fleet: Fleet, fake: FakeLookupd) -> None:
    flags = ["--broadcast-address=nsqd.test", "--topology-zone=z", "--topology-region=r"]
    daemon = fleet.nsqd("nsqx", lookupd_flag(fake), *flags)
    fake.wait_for(lambda each: each.identities, "IDENTIFY")
    assert fake.greetings == [b"  V1"]
    hostname = fake.identities[0].pop("hostname")
    assert hostname == daemon.request("GET", "/info").json()["hostname"]
    assert fake.identities == [
        {
            "broadcast_address": "nsqd.test",
            "tcp_port": daemon.tcp_port,
            "http_port": daemon.http_port,
            "version": "1.3.0",
            "topology_zone": "z",
            "topology_region": "r",
        }
    ]


def test_identify_has_the_broadcast_ports(fleet: Fleet, fake: FakeLookupd) -> None:
    fleet.nsqd("nsqx", lookupd_flag(fake), "--broadcast-tcp-port=1111", "--broadcast-http-port=2222")
    (identity,) = fake.wait_for(lambda each: each.identities, "IDENTIFY")
    assert (identity["tcp_port"], identity["http_port"]) == (1111, 2222)


def test_everything_is_registered_at_connect(fleet: Fleet, fake: FakeLookupd, tmp_path: Path) -> None:
    """Channels, and topics without channels; more than nsqd sends before it waits for answers."""
    many = [f"c{number}" for number in range(600)]
    write_metadata(tmp_path, {"alone": [], "two": ["a", "b"], "many": many})
    fleet.nsqd("nsqx", lookupd_flag(fake), data_path=tmp_path)
    expected = ["REGISTER alone", "REGISTER two a", "REGISTER two b", *(f"REGISTER many {name}" for name in many)]
    fake.wait_for(lambda each: len(each.commands) == 1 + len(expected), "everything is registered")
    assert fake.commands[0] == "IDENTIFY"
    assert sorted(fake.commands[1:]) == sorted(expected)


def test_changes_are_sent_in_order(nsqd: Daemon, fake: FakeLookupd, second_fake: FakeLookupd, topic: str) -> None:
    register_with(nsqd, fake, second_fake)
    wait_until_askable(nsqd, fake, second_fake)
    nsqd.post("/topic/create", topic=topic)
    nsqd.post("/channel/create", topic=topic, channel="a")
    nsqd.post("/channel/create", topic=topic, channel="b")
    nsqd.post("/channel/delete", topic=topic, channel="a")
    nsqd.post("/channel/create", topic=topic, channel="a")
    nsqd.post("/topic/delete", topic=topic)
    expected = [
        f"REGISTER {topic}",
        f"REGISTER {topic} a",
        f"REGISTER {topic} b",
        f"UNREGISTER {topic} a",
        f"REGISTER {topic} a",
        f"UNREGISTER {topic} b",
        f"UNREGISTER {topic} a",
        f"UNREGISTER {topic}",
    ]
    for each in (fake, second_fake):
        each.wait_for(lambda lookupd: len(lookupd.commands) == len(expected), "all changes are sent")
        assert each.commands == expected


def test_ephemeral_topics_and_channels_are_registered(nsqd: Daemon, fake: FakeLookupd, topic: str) -> None:
    register_with(nsqd, fake)
    wait_until_askable(nsqd, fake)
    name = f"{topic}#ephemeral"
    with RawClient(nsqd.tcp_address) as consumer:
        assert consumer.sub(name, "c#ephemeral") == CLIENT_OK
        fake.wait_for_commands(f"REGISTER {name}", f"REGISTER {name} c#ephemeral")
    expected = ["REGISTER", "REGISTER c#ephemeral", "UNREGISTER c#ephemeral", "UNREGISTER"]
    fake.wait_for(lambda each: len(each.commands) == 4, "both are gone")
    assert [command.replace(f" {name}", "") for command in fake.commands] == expected


def test_nsqd_pings_nsqlookupd(fake: FakeLookupd) -> None:
    with start_nsqd_with_lookup_timeouts(lookupd_flag(fake), PING_INTERVAL_S=0.05):
        fake.wait_for(lambda each: each.commands.count("PING") >= 3, "three PINGs")
        assert fake.connection_count == 1


@pytest.mark.parametrize("how", [CLOSE, RESET])
def test_a_lost_connection_is_restored(how: str, nsqd: Daemon, fake: FakeLookupd, topic: str) -> None:
    """nsqlookupd forgets an nsqd that disconnects, so nsqd registers everything again."""
    nsqd.post("/topic/create", topic=topic)
    nsqd.post("/channel/create", topic=topic, channel="ch")
    register_with(nsqd, fake)
    fake.wait_for_commands(f"REGISTER {topic} ch")
    time.sleep(0.1)  # nsqd must no longer wait for an answer; nothing shows when that is so
    fake.drop(how)
    fake.wait_for(lambda each: each.open_count == 0, "the connection is lost")
    fake.forget()
    nsqd.post("/topic/create", topic=f"{topic}.new")  # makes nsqd notice the loss
    fake.wait_for_commands("IDENTIFY", f"REGISTER {topic} ch", f"REGISTER {topic}.new")
    check_flow(nsqd, topic)


@pytest.mark.parametrize("how", [CLOSE, RESET])
def test_a_ping_detects_a_lost_connection(how: str, fake: FakeLookupd) -> None:
    with start_nsqd_with_lookup_timeouts(lookupd_flag(fake), PING_INTERVAL_S=0.1):
        fake.wait_for_commands("PING")
        fake.drop(how)
        fake.wait_for(lambda each: len(each.identities) == 2, "nsqd has reconnected")
        fake.forget()
        fake.wait_for_commands("PING")


def test_changes_while_disconnected_use_no_memory(topic: str) -> None:
    """nsqd registers everything when it connects, so it keeps no commands for an nsqlookupd that is down."""

    async def scenario() -> int:
        broker: Any = SimpleNamespace(log=Log("", FATAL), topics={})
        lookup = Lookup(broker)
        lookup.set_addresses(["127.0.0.1:1"])
        await asyncio.sleep(0)
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        for number in range(5000):
            lookup.registered(topic, f"consumer{number}#ephemeral")
            lookup.unregistered(topic, f"consumer{number}#ephemeral")
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        await lookup.close()
        return after - before

    assert asyncio.run(scenario()) < 50_000


@contextlib.contextmanager
def dead_lookupd() -> Iterator[FakeLookupd]:
    """A nsqlookupd that accepts and closes connections, until its ``answer`` is replaced."""
    with FakeLookupd() as fake:
        fake.answer = lambda _: CLOSE
        yield fake


NEVER_BY_ITSELF = {"_RETRY_FIRST_S": 600, "_RETRY_LONGEST_S": 600}


def test_a_new_topic_or_channel_reconnects_at_once(topic: str) -> None:
    with dead_lookupd() as fake, start_nsqd_with_lookup_timeouts(lookupd_flag(fake), **NEVER_BY_ITSELF) as daemon:
        daemon.wait_for_log(r"LOOKUPD\(127.0.0.1:\d+\): connection closed|LOOKUPD.*0 bytes")
        daemon.post("/topic/create", topic=topic)
        fake.wait_for(lambda each: each.connection_count == 2, "nsqd reconnects for the topic")
        fake.answer = fake.correct_answer
        daemon.post("/channel/create", topic=topic, channel="ch")
        fake.wait_for_commands(f"REGISTER {topic} ch")


def test_many_new_topics_do_not_flood_a_dead_nsqlookupd(topic: str) -> None:
    """The shortest pause is kept, however many topics there are."""
    limits = {**NEVER_BY_ITSELF, "_RETRY_SOONEST_S": 600}
    with dead_lookupd() as fake, start_nsqd_with_lookup_timeouts(lookupd_flag(fake), **limits) as daemon:
        fake.wait_for(lambda each: each.connection_count == 1, "nsqd connects once")
        for number in range(50):
            daemon.post("/topic/create", topic=f"{topic}.{number}")
        check_flow(daemon, topic)
        assert fake.connection_count == 1


def test_a_change_is_sent_at_once(fake: FakeLookupd, topic: str) -> None:
    """The fake runs in threads: it can receive while this thread blocks the event loop."""

    async def scenario() -> None:
        options = SimpleNamespace(broadcast_address="127.0.0.1", topology_zone="", topology_region="")
        broker: Any = SimpleNamespace(log=Log("", FATAL), topics={}, options=options, hostname="host")
        broker.broadcast_tcp_port = broker.broadcast_http_port = 1
        broker.lookup_tls_context = None
        broker.lookup_credentials = Credentials()
        lookup = Lookup(broker)
        lookup.set_addresses([fake.tcp_address])
        await lookup.settled()
        lookup.registered(topic)
        fake.wait_for_commands(f"REGISTER {topic}")
        await lookup.close()

    asyncio.run(scenario())


def test_addresses_change_at_run_time(nsqd: Daemon, fake: FakeLookupd, second_fake: FakeLookupd, topic: str) -> None:
    register_with(nsqd, fake)
    nsqd.post("/topic/create", topic=topic)
    register_with(nsqd, fake, second_fake)
    second_fake.wait_for_commands(f"REGISTER {topic}")
    assert fake.connection_count == 1, "a nsqlookupd that stays configured keeps its connection"
    assert put_addresses(nsqd, json.dumps([second_fake.tcp_address] * 2).encode()) == 200
    fake.wait_for(lambda each: each.open_count == 0, "the removed one is disconnected")
    told = fake.commands
    nsqd.post("/channel/create", topic=topic, channel="ch")
    second_fake.wait_for_commands(f"REGISTER {topic} ch")
    assert (second_fake.connection_count, fake.commands) == (1, told)
    answer = nsqd.request("GET", "/config/nsqlookupd_tcp_addresses")
    assert answer.json() == [second_fake.tcp_address] * 2
    assert put_addresses(nsqd, b"[]") == 200
    second_fake.wait_for(lambda each: each.open_count == 0, "no nsqlookupd is left")


@pytest.mark.parametrize("body", [b"{", b"null5", b'"127.0.0.1:4160"', b"[1]", b'[["a:1"]]', b"{}"])
def test_invalid_addresses_change_nothing(body: bytes, nsqd: Daemon, fake: FakeLookupd) -> None:
    register_with(nsqd, fake)
    answer = nsqd.request("PUT", "/config/nsqlookupd_tcp_addresses", body)
    assert (answer.status, answer.json()) == (400, {"message": "INVALID_VALUE"})
    assert nsqd.request("GET", "/config/nsqlookupd_tcp_addresses").json() == [fake.tcp_address]
    assert (fake.open_count, fake.connection_count) == (1, 1)


def test_unreachable_addresses_do_no_harm(nsqd: Daemon, fake: FakeLookupd, topic: str) -> None:
    nsqd.post("/topic/create", topic=topic)
    nowhere = ["", "nonsense", "127.0.0.1", "127.0.0.1:1", "host with spaces:1", "a" * 300 + ":1", "/no/such/socket"]
    assert put_addresses(nsqd, json.dumps([*nowhere, fake.tcp_address]).encode()) == 200
    fake.wait_for_commands(f"REGISTER {topic}")
    check_flow(nsqd, topic)


def test_a_new_topic_gets_the_channels_that_it_has_elsewhere(fleet: Fleet, topic: str) -> None:
    lookupd = fleet.nsqlookupd("nsqx")
    first, second = [fleet.nsqd("nsqx", f"--lookupd-tcp-address={lookupd.tcp_address}") for _ in range(2)]
    nodes = {first.http_port, second.http_port}

    def registered() -> set[int]:
        return {node["http_port"] for node in lookupd.request("GET", "/nodes").json()["producers"]}

    wait_until(lambda: registered() == nodes, "both are registered")
    first.post("/topic/create", topic=topic)
    for channel in ("one", "two", "three#ephemeral"):
        first.post("/channel/create", topic=topic, channel=channel)

    def known() -> list[str]:
        return lookupd.request("GET", f"/channels?topic={topic}").json()["channels"]

    wait_until(lambda: sorted(known()) == ["one", "three#ephemeral", "two"], "the channels are registered")
    with RawClient(second.tcp_address) as producer:
        assert producer.pub(topic, b"first") == CLIENT_OK
    wait_until(lambda: depth(second, topic, "one") == depth(second, topic, "two") == 1, "both channels have it")
    assert channel_names(second, topic) == {"one", "two"}


@pytest.mark.parametrize("route", ["/topic/create", "/channel/create", "/pub", "/mpub", "/mpub of nothing"])
def test_the_channels_exist_when_a_request_is_answered(route: str, nsqd: Daemon, fleet: Fleet, topic: str) -> None:
    lookupd = fleet.nsqlookupd("nsqx")
    assert put_addresses(nsqd, json.dumps([lookupd.tcp_address]).encode()) == 200
    wait_until(lambda: lookupd.request("GET", "/nodes").json()["producers"], "nsqd is registered")
    body = {"/pub": b"message", "/mpub": b"one\ntwo", "/mpub of nothing": b"\n"}.get(route, b"")
    with RawClient(nsqd.tcp_address) as producer:
        for number in range(20):
            name = f"{topic}.{number}"
            lookupd.post("/channel/create", topic=name, channel="c")
            if route == "/channel/create":
                assert producer.pub(name, b"first") == CLIENT_OK
            nsqd.post(route.split()[0], body, topic=name, channel="other")
            nsqd.post("/channel/pause", topic=name, channel="c")


def test_channels_come_from_every_nsqlookupd(
    nsqd: Daemon, fake: FakeLookupd, second_fake: FakeLookupd, topic: str
) -> None:
    """The answers are merged: a channel that any nsqlookupd knows is created."""
    fake.channels[topic] = ["both", "first"]
    second_fake.channels[topic] = ["both", "second"]
    register_with(nsqd, fake, second_fake)
    wait_until_askable(nsqd, fake, second_fake)
    nsqd.post("/pub", b"message", topic=topic)
    for channel in ("both", "first", "second"):
        wait_until(lambda name=channel: depth(nsqd, topic, name) == 1, f"{channel} has the message")
    assert fake.requests[-1] == second_fake.requests[-1] == f"/channels?topic={topic}"


def test_the_answer_of_one_nsqlookupd_suffices(
    nsqd: Daemon, fake: FakeLookupd, second_fake: FakeLookupd, topic: str
) -> None:
    fake.channels[topic] = ["ch"]
    second_fake.http_answer = lambda _: CLOSE
    register_with(nsqd, fake, second_fake)
    wait_until_askable(nsqd, fake, second_fake)
    nsqd.post("/pub", b"message", topic=topic)
    wait_until(lambda: depth(nsqd, topic, "ch") == 1, "the channel has the message")


def test_the_query_for_channels(nsqd: Daemon, fake: FakeLookupd, topic: str) -> None:
    register_with(nsqd, fake)
    wait_until_askable(nsqd, fake)
    nsqd.post("/topic/create", topic=f"{topic}#ephemeral")
    fake.wait_for(lambda each: f"/channels?topic={topic}%23ephemeral" in each.requests, "nsqd asks")
    head = fake.request_heads[-1].decode().split("\r\n")
    assert f"Host: {fake.http_address}" in head
    assert "Accept: application/vnd.nsq; version=1.0" in head
    nsqd.post("/topic/delete", topic=f"{topic}#ephemeral")


class Gate:
    """Holds back answers until it is opened."""

    def __init__(self) -> None:
        self._opened = threading.Event()

    def open(self) -> None:
        self._opened.set()

    def behind(self, answer: Callable[[str], Answer]) -> Callable[[str], Answer]:
        def late_answer(question: str) -> Answer:
            self._opened.wait()
            return answer(question)

        return late_answer


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


def test_only_the_first_message_waits_for_the_channels(fleet: Fleet, fake: FakeLookupd, gate: Gate, topic: str) -> None:
    daemon = fleet.nsqd("nsqx", lookupd_flag(fake), *PATIENT_FLAGS)
    wait_until_askable(daemon, fake)
    daemon.post("/topic/create", topic="existing")
    fake.wait_for(lambda each: "/channels?topic=existing" in each.requests, "nsqd queries the topic's channels")
    fake.http_answer = gate.behind(fake.correct_http_answer)
    fake.channels[topic] = ["elsewhere"]
    with RawClient(daemon.tcp_address) as consumer, RawClient(daemon.tcp_address) as producer:
        assert consumer.sub(topic, "here") == CLIENT_OK
        consumer.rdy(1)
        assert producer.pub(topic, b"first") == CLIENT_OK
        fake.wait_for(lambda each: f"/channels?topic={topic}" in each.requests, "nsqd asks")
        check_flow(daemon, "existing")
        assert daemon.topic_stats(topic)["depth"] == 1
        assert channel_names(daemon, topic) == {"here"}
        gate.open()
        assert consumer.read_message().body == b"first"
    assert depth(daemon, topic, "elsewhere") == 1


def test_the_wait_for_channels_is_bounded(fleet: Fleet, fake: FakeLookupd, topic: str) -> None:
    daemon = fleet.nsqd("nsqx", lookupd_flag(fake), "--http-client-request-timeout=100ms")
    wait_until_askable(daemon, fake)
    fake.http_answer = lambda _: SILENCE
    with RawClient(daemon.tcp_address) as consumer:
        assert consumer.sub(topic, "ch") == CLIENT_OK
        consumer.rdy(1)
        daemon.post("/pub", b"first", topic=topic)
        assert consumer.read_message().body == b"first"
    daemon.wait_for_log("context deadline exceeded")


def test_a_topic_is_deleted_during_the_query_for_its_channels(
    fleet: Fleet, fake: FakeLookupd, gate: Gate, topic: str
) -> None:
    daemon = fleet.nsqd("nsqx", lookupd_flag(fake), *PATIENT_FLAGS)
    wait_until_askable(daemon, fake)
    fake.channels[topic] = ["ch"]
    fake.http_answer = gate.behind(fake.correct_http_answer)
    with RawClient(daemon.tcp_address) as producer:
        assert producer.pub(topic, b"deleted") == CLIENT_OK
        daemon.post("/topic/delete", topic=topic)
        assert producer.pub(topic, b"new") == CLIENT_OK
    fake.wait_for(lambda each: each.requests.count(f"/channels?topic={topic}") == 2, "nsqd queries both")
    gate.open()
    wait_until(lambda: depth(daemon, topic, "ch") == 1, "the new topic has its channel and message")
    assert "internal error" not in daemon.log


def test_a_message_that_waits_for_channels_survives_a_restart(
    fleet: Fleet, fake: FakeLookupd, gate: Gate, topic: str, tmp_path: Path
) -> None:
    daemon = fleet.nsqd("nsqx", lookupd_flag(fake), *PATIENT_FLAGS, data_path=tmp_path)
    wait_until_askable(daemon, fake)
    fake.http_answer = gate.behind(fake.correct_http_answer)
    with RawClient(daemon.tcp_address) as producer:
        assert producer.pub(topic, b"waiting") == CLIENT_OK
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(daemon.post, "/pub", b"answered", topic=topic)
        wait_until(lambda: daemon.topic_stats(topic)["depth"] == 2, "both messages are published")
        assert not answer.done()
        assert daemon.stop() == 0
        assert answer.result(15).body == b"OK"
    again = fleet.nsqd("nsqx", data_path=tmp_path)
    with RawClient(again.tcp_address) as consumer:
        assert consumer.sub(topic, "ch") == CLIENT_OK
        consumer.rdy(2)
        assert {consumer.read_message().body, consumer.read_message().body} == {b"waiting", b"answered"}


WRONG_CHANNELS = {
    "status 500": http_answer(b'{"message":"INTERNAL_ERROR"}', "500 Internal Server Error"),
    "not found": http_answer(b"", "404 Not Found"),
    "redirect": http_answer(b"", "302 Found"),
    "no JSON": http_answer(b"{channels"),
    "no UTF-8": http_answer(b'{"channels":["\xff\xfe"]}'),
    "empty": http_answer(b""),
    "a list": http_answer(b'["ch"]'),
    "null": http_answer(b"null"),
    "a number": http_answer(b"5"),
    "other key": http_answer(b'{"topics":["ch"]}'),
    "null channels": http_answer(b'{"channels":null}'),
    "text channels": http_answer(b'{"channels":"abc"}'),
    "number channels": http_answer(b'{"channels":7}'),
    "object channels": http_answer(b'{"channels":{"ch":1}}'),
    "deep": http_answer(b'{"channels":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "invalid names": http_answer(json.dumps({"channels": [1, None, "", "a b", "x" * 65, ["c"], "e#eph"]}).encode()),
    "too big": http_answer(b'{"channels":[' + b" " * 9_000_000 + b"]}"),
    "cut off": http_answer(b'{"channels":["ch"]}')[:-5],
    "garbage": b"\x00\xff\r\n\r\n\r\n",
    "nsqd's protocol": b"\x00\x00\x00\x0b\x00\x00\x00\x01E_INVALID",
    "another protocol": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    "close": CLOSE,
    "reset": RESET,
}


@pytest.mark.parametrize("name", WRONG_CHANNELS)
def test_a_wrong_answer_about_channels_is_ignored(name: str, nsqd: Daemon, fake: FakeLookupd, topic: str) -> None:
    """The topic starts without channels from elsewhere and works."""
    fake.http_answer = lambda _: WRONG_CHANNELS[name]
    register_with(nsqd, fake)
    wait_until_askable(nsqd, fake)
    nsqd.post("/pub", b"0", topic=topic)
    nsqd.post("/channel/create", topic=topic, channel="here")
    wait_until(lambda: depth(nsqd, topic, "here") == 1, "the message has reached the channel")
    assert channel_names(nsqd, topic) == {"here"}
    nsqd.post("/topic/delete", topic=topic)
    fake.http_answer, fake.channels[topic] = fake.correct_http_answer, ["elsewhere"]
    nsqd.post("/pub", b"0", topic=topic)
    wait_until(lambda: depth(nsqd, topic, "elsewhere") == 1, "a later correct answer is used")


def test_valid_channel_names_among_invalid_ones_are_used(nsqd: Daemon, fake: FakeLookupd, topic: str) -> None:
    fake.http_answer = lambda _: http_answer(b'{"channels":["good",5,"not good",null,"gone#ephemeral","good"]}')
    register_with(nsqd, fake)
    wait_until_askable(nsqd, fake)
    nsqd.post("/pub", b"message", topic=topic)
    wait_until(lambda: depth(nsqd, topic, "good") == 1, "the channel has the message")
    assert channel_names(nsqd, topic) == {"good"}


def test_channels_beyond_the_limit_are_not_created(nsqd: Daemon, fake: FakeLookupd, topic: str) -> None:
    fake.channels[topic] = [f"c{number}" for number in range(20_000)]
    register_with(nsqd, fake)
    wait_until_askable(nsqd, fake)
    nsqd.post("/topic/create", topic=topic)
    assert channel_names(nsqd, topic) == set(sorted(fake.channels[topic])[:MAX_CHANNELS])
    line = f"TOPIC({topic}): nsqlookupd names 20000 channels, creating the first {MAX_CHANNELS}"
    nsqd.wait_for_log(re.escape(line))
    assert nsqd.log.count(line) == 1
    nsqd.post("/topic/delete", topic=topic)


def introduction(**fields: Any) -> bytes:
    return sized(json.dumps({"broadcast_address": "127.0.0.1", "http_port": 1, "tcp_port": 1, **fields}).encode())


# Wrong answers to IDENTIFY and to later commands. ``SILENCE`` is an nsqlookupd that does not answer.
WRONG_INTRODUCTIONS: dict[str, Answer] = {
    "close": CLOSE,
    "reset": RESET,
    "silence": SILENCE,
    "half a size": b"\x00\x00",
    "size without data": b"\x00\x00\x00\x20",
    "half the data": introduction()[:-4],
    "negative size": b"\xff\xff\xff\xff",
    "most negative size": b"\x80\x00\x00\x00",
    "greatest size": b"\x7f\xff\xff\xff" + b"x" * 100_000,
    "size over the limit": b"\x00\x10\x00\x01" + b"x" * (1024 * 1024 + 1),
    "nothing in it": sized(b""),
    "OK": OK,
    "no JSON": sized(b'{"broadcast_address":'),
    "a list": sized(b"[]"),
    "wrong types": introduction(http_port="4161"),
    "fractions": introduction(http_port=4161.5),
    "huge port": introduction(http_port=10**30),
    "deep": sized(b"[" * 100_000 + b"]" * 100_000),
    "no UTF-8": sized(b"\xff\xfe\xfd"),
    "E_INVALID": sized(b"E_INVALID"),
    "E_BAD_BODY": sized(b"E_BAD_BODY IDENTIFY missing fields"),
    "HTTP": b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n400 Bad Request",
}
WRONG_ANSWERS: dict[str, Answer] = {
    "close": CLOSE,
    "reset": RESET,
    "silence": SILENCE,
    "not OK": sized(b"NO"),
    "nothing in it": sized(b""),
    "negative size": b"\x80\x00\x00\x05OK",
    "greatest size": b"\x7f\xff\xff\xffOK",
    "E_INVALID": sized(b"E_INVALID client must IDENTIFY"),
    "E_BAD_TOPIC": sized(b"E_BAD_TOPIC REGISTER topic name is not valid"),
    "frame of nsqd": b"\x00\x00\x00\x06\x00\x00\x00\x00OK",
    "garbage": bytes(range(256)),
}


@pytest.fixture
def wrong_lookupds() -> Iterator[dict[str, FakeLookupd]]:
    """Run one fake nsqlookupd for each wrong answer, all at once."""
    with contextlib.ExitStack() as stack:
        found = {}
        for kind, answers in (("introduction", WRONG_INTRODUCTIONS), ("answer", WRONG_ANSWERS)):
            for name, answer in answers.items():
                fake = found[f"{kind}: {name}"] = stack.enter_context(FakeLookupd())
                fake.answer = wrong_answerer(fake, kind, answer)
        yield found


def wrong_answerer(fake: FakeLookupd, kind: str, answer: Answer) -> Callable[[str], Answer]:
    def wrong_answer(command: str) -> Answer:
        is_introduction = command == "IDENTIFY"
        return answer if is_introduction == (kind == "introduction") else fake.correct_answer(command)

    return wrong_answer


def test_wrong_answers_do_no_harm(nsqd: Daemon, wrong_lookupds: dict[str, FakeLookupd], topic: str) -> None:
    """nsqd works during wrong answers and keeps reconnecting; once the answers are right, it registers everything."""
    nsqd.post("/topic/create", topic=topic)
    nsqd.post("/channel/create", topic=topic, channel="ch")
    register_with(nsqd, *wrong_lookupds.values())
    for name, fake in wrong_lookupds.items():
        fake.wait_for(lambda each: each.connection_count >= 2, f"nsqd reconnects after {name}")
        check_flow(nsqd, topic, count=1)
    for fake in wrong_lookupds.values():
        fake.answer = fake.correct_answer
        fake.forget()
    for name, fake in wrong_lookupds.items():
        fake.wait_for(lambda each: f"REGISTER {topic} ch" in each.commands, f"nsqd registers everything after {name}")
    assert put_addresses(nsqd, b"[]") == 200
    nsqd.post("/channel/delete", topic=topic, channel="ch")
    check_flow(nsqd, topic)


@pytest.mark.parametrize(
    "fields",
    [
        {"http_port": -1},
        {"http_port": 0},
        {"http_port": 99999},
        {"broadcast_address": "no such host"},
        {"broadcast_address": "[::1"},
        {"broadcast_address": "a\r\nb/\0"},
    ],
    ids=str,
)
def test_an_nsqlookupd_with_unreachable_http(
    fields: dict[str, Any], nsqd: Daemon, fake: FakeLookupd, topic: str
) -> None:
    """nsqd registers everything there, but cannot query channels."""
    fake.answer = lambda command: introduction(**fields) if command == "IDENTIFY" else OK
    register_with(nsqd, fake)
    wait_until_askable(nsqd, fake)
    nsqd.post("/pub", b"0", topic=topic)
    nsqd.post("/channel/create", topic=topic, channel="ch")
    wait_until(lambda: depth(nsqd, topic, "ch") == 1, "the message has reached the channel")
    fake.wait_for_commands(f"REGISTER {topic}", f"REGISTER {topic} ch")
    assert fake.connection_count == 1


def test_an_nsqlookupd_without_broadcast_address_gets_registrations(
    nsqd: Daemon, fake: FakeLookupd, topic: str
) -> None:
    """As Go's nsqd does; it logs that it cannot query channels there."""
    fake.answer = lambda command: introduction(broadcast_address="") if command == "IDENTIFY" else OK
    register_with(nsqd, fake)
    nsqd.post("/pub", b"0", topic=topic)
    nsqd.post("/channel/create", topic=topic, channel="ch")
    fake.wait_for_commands(f"REGISTER {topic} ch")
    wait_until(lambda: depth(nsqd, topic, "ch") == 1, "the message has reached the channel")
    assert f"LOOKUPD({fake.tcp_address}): no broadcast address" in nsqd.log


def test_a_stuck_nsqlookupd_delays_nothing(fake: FakeLookupd, gate: Gate, topic: str) -> None:
    """nsqd waits up to a minute for this one; messages, new topics and shutdown do not wait."""
    fake.answer = gate.behind(fake.correct_answer)
    with start_nsqd_with_lookup_timeouts(lookupd_flag(fake), _TIMEOUT_S=60) as daemon:
        fake.wait_for(lambda each: each.identities, "IDENTIFY")
        check_flow(daemon, topic)
        check_flow(daemon, f"{topic}.new")
        assert fake.commands == ["IDENTIFY"]
        assert daemon.stop() == 0
    assert fake.connection_count == 1


def test_a_slow_nsqlookupd_gets_all_registrations(fleet: Fleet, fake: FakeLookupd, gate: Gate, topic: str) -> None:
    daemon = fleet.nsqd("nsqx", lookupd_flag(fake))
    daemon.post("/topic/create", topic=topic)
    wait_until_askable(daemon, fake)
    fake.answer = gate.behind(fake.correct_answer)
    daemon.post("/topic/create", topic=f"{topic}.new")
    fake.wait_for(lambda each: len(each.identities) == 2, "nsqd has reconnected after a timeout")
    check_flow(daemon, topic)
    fake.forget()
    gate.open()
    fake.wait_for_commands(f"REGISTER {topic} flow", f"REGISTER {topic}.new")


def test_nsqd_registers_when_nsqlookupd_starts(fleet: Fleet, topic: str) -> None:
    with FakeLookupd() as gone:
        address = gone.tcp_address
    daemon = fleet.nsqd("nsqx", f"--lookupd-tcp-address={address}")
    check_flow(daemon, topic)
    daemon.wait_for_log(r"LOOKUPD\(127.0.0.1:\d+\): .*(refused|failed)")
    lookupd = fleet.nsqlookupd("nsqx", f"--tcp-address={address}")
    wait_until(lambda: lookupd.request("GET", f"/lookup?topic={topic}").status == 200, "nsqd has registered")
