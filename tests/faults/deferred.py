"""Scenarios of deferred messages and a restart (row 15)."""

import time

from stage import CHANNEL, TOPIC, Outcome, Stage, bodies, create_channel, message_counts

from daemons import wait_until
from rawclient import OK, Message, RawClient

DELAY_MS = 1500
COUNT = 100
# How far wall clock and loop clock may differ after the test.
DRIFT_S = 0.01


def restart_with_deferred(stage: Stage, where: str = "channel", flags: tuple[str, ...] = ()) -> Outcome:
    """100 messages are deferred by DPUB, in the channel or still in its topic, or by REQ; SIGTERM and a restart."""
    daemon = stage.nsqd(*flags)
    daemon.post("/topic/create", topic=TOPIC)
    if where != "topic":
        create_channel(daemon)
    due_s = defer_messages(stage, daemon.tcp_address, where)
    if where != "topic":
        wait_until(lambda: message_counts(daemon)[2] == COUNT, "messages are deferred")
    daemon.stop()
    return receive_deferred(stage, flags, due_s)


def defer_messages(stage: Stage, address: str, where: str) -> dict[bytes, float]:
    """Defer messages; return the earliest due time of each, by the wall clock."""
    due_s = {}
    messages = bodies("deferred", COUNT)
    stage.tracker.sent.update(messages)
    stage.tracker.acked.update(messages)
    with RawClient(address) as client, RawClient(address) as producer:
        if where == "requeued":
            assert client.sub(TOPIC, CHANNEL) == OK
            client.rdy(1)
        for body in messages:
            due_s[body] = time.time() + DELAY_MS / 1000 - DRIFT_S
            if where == "requeued":
                assert producer.pub(TOPIC, body) == OK
                message = client.read_message()
                client.req(message.id, DELAY_MS)
            else:
                assert producer.dpub(TOPIC, DELAY_MS, body) == OK
    return due_s


def receive_deferred(stage: Stage, flags: tuple[str, ...], due_s: dict[bytes, float]) -> Outcome:
    """Start nsqd and receive the deferred messages; say how many of them were early."""
    daemon = stage.nsqd(*flags)
    create_channel(daemon)
    early = 0
    with stage.consumer(daemon, ready=COUNT) as client:
        for _ in range(COUNT):
            try:
                message: Message = client.read_message(DELAY_MS / 1000 + 5)
            except TimeoutError:
                break
            early += time.time() < due_s.get(message.body, 0.0)
            client.fin(message.id)
            stage.tracker.delivered[message.body] += 1
        wait_until(lambda: message_counts(daemon)[1] == 0, "every message is finished")
    daemon.stop()
    return stage.tracker.outcome(early=f"{early} of {COUNT}")
