"""A client that repeats a PUB to the same topic gets the same result as any other, whatever happens in between."""

import pytest

from rawclient import ERROR, OK, Frame, mpub, pub

TOO_BIG = Frame(ERROR, b"E_BAD_MESSAGE PUB message too big 1048577 > 1048576")


def test_each_publish_is_acknowledged_and_counted(bench, talk):
    assert talk.send(pub("t", b"1") + pub("t", b"22") + pub("t", b"333")) == [OK] * 3
    topic = bench.broker.topics["t"]
    assert (topic.message_count, topic.message_bytes, topic.depth) == (3, 6, 3)
    assert talk.client.pub_counts == {"t": 3}
    assert talk.session.command_count == 3


def test_publishes_to_alternating_topics(bench, talk):
    assert talk.send(pub("t", b"1") + pub("u", b"1") + pub("t", b"1") + mpub("v", [b"1"]) + pub("t", b"1")) == [OK] * 5
    assert {name: topic.message_count for name, topic in bench.broker.topics.items()} == {"t": 3, "u": 1, "v": 1}
    assert talk.client.pub_counts == {"t": 3, "u": 1, "v": 1}


def test_a_topic_deleted_in_between_is_created_again(bench, talk):
    assert talk.send(pub("t", b"old")) == [OK]
    bench.broker.delete_topic("t")
    assert talk.send(pub("t", b"new") + pub("t", b"newer")) == [OK] * 2
    assert bench.broker.topics["t"].message_count == 2


def test_the_size_limits_apply(talk):
    assert talk.send(pub("t", b"1")) == [OK]
    assert talk.send(pub("t", b"x" * 1048577)) == [TOO_BIG]
    assert talk.is_closed


def test_an_empty_body_is_refused(talk):
    assert talk.send(pub("t", b"1")) == [OK]
    assert talk.send(pub("t", b"")) == [Frame(ERROR, b"E_BAD_MESSAGE PUB invalid message body size 0")]


def test_an_exiting_broker_refuses_the_publish(bench, talk):
    assert talk.send(pub("t", b"1")) == [OK]
    bench.broker.exiting = True
    for topic in bench.broker.topics.values():
        topic.close()
    assert talk.send(pub("t", b"2")) == [Frame(ERROR, b"E_PUB_FAILED PUB failed exiting")]
    assert talk.is_closed


def test_a_body_can_arrive_in_chunks(bench, talk):
    assert talk.send(pub("t", b"1")) == [OK]
    command = pub("t", b"second")
    for index in range(1, len(command)):
        assert talk.send(command[:index]) == []
        assert talk.send(command[index:]) == [OK]
    assert bench.broker.topics["t"].message_count == len(command)


class RecordingAuthorizer:
    """Allows everything, and records every check."""

    is_enabled = True

    def __init__(self):
        self.checks = []

    def is_current(self, client):
        return True

    def check(self, client, command, topic_name, channel_name):
        self.checks.append((command, topic_name))


@pytest.mark.parametrize("count", [1, 3])
def test_with_auth_each_publish_is_checked(bench, talk, count):
    bench.broker.authorizer = authorizer = RecordingAuthorizer()
    assert talk.send(pub("t", b"1") * count) == [OK] * count
    assert authorizer.checks == [("PUB", "t")] * count
