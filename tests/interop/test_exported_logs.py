"""Go's nsqd on a data directory whose topic logs were exported: it delivers every message once."""

from pathlib import Path

import pytest

from daemons import Daemon, Fleet, wait_until
from log_directories import EXPECTED, write_logs
from nsqx.cli.log import main
from rawclient import OK, RawClient

# A topic's own messages go to all its channels.
CHANNELS = {
    ("orders", "billing"): ("orders:billing", "orders"),
    ("orders", "mail"): ("orders:mail", "orders"),
    ("plain", "new"): ("plain",),
    ("stopped", "ch"): ("stopped:ch", "stopped"),
}


def drain(daemon: Daemon, topic: str, channel: str, count: int) -> list[tuple[bytes, int]]:
    """Finish ``count`` messages; return body and attempts."""
    with RawClient(daemon.tcp_address) as client:
        assert client.sub(topic, channel) == OK
        client.rdy(100)
        messages = [client.read_message() for _ in range(count)]
        for message in messages:
            client.fin(message.id)
        wait_until(lambda: daemon.channel_stats(topic, channel)["depth"] == 0, "the channel is empty")
    return [(message.body, message.attempts) for message in messages]


@pytest.mark.parametrize("implementation", ["go", "nsqx"])
def test_every_exported_message_is_delivered(fleet: Fleet, tmp_path: Path, implementation: str) -> None:
    write_logs(tmp_path, is_clean=False)
    assert main(["export", "--max-bytes-per-file=400", str(tmp_path)]) == 0
    daemon = fleet.nsqd(implementation, data_path=tmp_path)
    assert daemon.channel_stats("orders", "mail")["paused"]
    assert daemon.topic_stats("stopped")["paused"]
    daemon.post("/channel/unpause", topic="orders", channel="mail")
    daemon.post("/topic/unpause", topic="stopped")
    later = {b"deferred", b"order 05"} if implementation == "nsqx" else set()
    for (topic, channel), queues in CHANNELS.items():
        expected = [(body, attempts + 1) for name in queues for body, attempts in EXPECTED[name] if body not in later]
        if (topic, channel) == ("orders", "mail"):
            expected += [(b"order 05", 1)] if later else []
        assert sorted(drain(daemon, topic, channel, len(expected))) == sorted(expected)
    if implementation == "nsqx":
        # With topic logs, nsqd moves the exported messages to a log in the background.
        for channel, count in (("billing", 2), ("mail", 1)):
            wait_until(
                lambda: daemon.channel_stats("orders", channel)["deferred_count"] == count,  # noqa: B023
                f"{channel} has the deferred messages",
            )
