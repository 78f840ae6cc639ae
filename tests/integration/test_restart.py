"""nsqd restarted on its data directory with other flags."""

from pathlib import Path

from daemons import Daemon, Fleet
from rawclient import OK, RawClient, mpub


def drain(daemon: Daemon, topic: str, count: int) -> list[bytes]:
    """Receive and finish ``count`` messages. Return their bodies."""
    bodies = []
    with RawClient(daemon.tcp_address) as consumer:
        assert consumer.sub(topic, "ch") == OK
        consumer.rdy(100)
        for _ in range(count):
            message = consumer.read_message()
            consumer.fin(message.id)
            bodies.append(message.body)
    return bodies


def test_larger_messages_on_disk_are_delivered_after_the_size_limit_is_lowered(
    fleet: Fleet, topic: str, tmp_path: Path
) -> None:
    bodies = [b"%03d" % number + b"x" * (1000 if number % 5 else 10) for number in range(500)]
    daemon = fleet.nsqd("nsqx", "--mem-queue-size=0", data_path=tmp_path)
    daemon.post("/topic/create", topic=topic)
    daemon.post("/channel/create", topic=topic, channel="ch")
    with RawClient(daemon.tcp_address) as producer:
        producer.send(mpub(topic, bodies))
        assert producer.read_answer() == OK
    daemon.kill()
    daemon = fleet.nsqd("nsqx", "--mem-queue-size=0", "--max-msg-size=100", data_path=tmp_path)
    assert sorted(drain(daemon, topic, len(bodies))) == bodies
    assert not list(tmp_path.glob("*.bad"))
