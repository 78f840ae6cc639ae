"""At the debug level nsqd logs every command in the same format as Go's nsqd."""

import re

import pytest

from daemons import IMPLEMENTATIONS, Fleet
from rawclient import OK, RawClient


def commands(log: str, address: str) -> list[str]:
    return re.findall(rf"DEBUG: PROTOCOL\(V2\): \[{re.escape(address)}\] \[(.*)\]", log)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_every_command_is_logged(fleet: Fleet, topic: str, implementation: str) -> None:
    daemon = fleet.nsqd(implementation, "--log-level=debug")
    with RawClient(daemon.tcp_address) as producer, RawClient(daemon.tcp_address) as consumer:
        assert producer.pub(topic, b"1") == OK
        assert producer.pub(topic, b"2") == OK
        assert producer.mpub(topic, [b"3"]) == OK
        consumer.identify()
        assert consumer.sub(topic, "ch") == OK
        consumer.rdy(1)
        first = consumer.read_message()
        consumer.touch(first.id)
        consumer.req(first.id, 0)
        second = consumer.read_message()
        consumer.fin(second.id)
        consumer.nop()
        consumer.rdy(0)
        daemon.wait_for_log(r"\[RDY 0\]")
        assert commands(daemon.log, producer.local_address) == [f"PUB {topic}", f"PUB {topic}", f"MPUB {topic}"]
        assert commands(daemon.log, consumer.local_address) == [
            "IDENTIFY",
            f"SUB {topic} ch",
            "RDY 1",
            f"TOUCH {first.id.decode()}",
            f"REQ {first.id.decode()} 0",
            f"FIN {second.id.decode()}",
            "NOP",
            "RDY 0",
        ]


def test_the_log_level_can_be_changed_while_nsqd_runs(fleet: Fleet, topic: str) -> None:
    daemon = fleet.nsqd("nsqx")
    with RawClient(daemon.tcp_address) as producer:
        assert producer.pub(topic, b"1") == OK
        assert daemon.request("PUT", "/config/log_level", b"debug").status == 200
        assert producer.pub(topic, b"2") == OK
        daemon.wait_for_log(rf"\[PUB {topic}\]")
        assert commands(daemon.log, producer.local_address) == [f"PUB {topic}"]


def test_control_characters_of_a_client_are_escaped_in_the_log(fleet: Fleet) -> None:
    daemon = fleet.nsqd("nsqx", "--log-level=debug")
    with RawClient(daemon.tcp_address) as client:
        client.send(b"PUB \x1b[31mred\xff\r[nsqd]\n")
        client.read_until_closed()
    logged = daemon.wait_for_log(r"DEBUG: PROTOCOL\(V2\): .*")[0]
    assert logged.isprintable()
