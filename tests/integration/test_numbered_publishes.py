"""Publishes with a producer and a number, against a real nsqd: stored once, also after kill -9."""

import pytest

from daemons import start_nsqd
from rawclient import mpub_body


@pytest.fixture(scope="module")
def nsqd():
    with start_nsqd("nsqx", "--store=log", "--store-rule=classic*=classic") as daemon:
        yield daemon


def publish(daemon, topic, seq, body=b"x", path="/pub", producer="p", **query):
    """Publish with a number; return the offset, and whether it was a duplicate."""
    answer = daemon.request("POST", path, body, query={"topic": topic, "producer": producer, "seq": str(seq), **query})
    assert (answer.status, answer.body) == (200, b"OK"), answer
    assert answer.headers.get("x-nsq-duplicate") in (None, "true")
    return int(answer.headers.get("x-nsq-offset", -1)), "x-nsq-duplicate" in answer.headers


def log_of(daemon, topic):
    (found,) = daemon.stats(topic=topic)["topics"]
    return found["log"]


class TestHTTP:
    def test_a_repeated_pub_is_answered_and_not_stored(self, nsqd, topic):
        assert publish(nsqd, topic, 1) == (0, False)
        assert publish(nsqd, topic, 1) == (0, True)
        assert publish(nsqd, topic, 7) == (1, False)
        assert publish(nsqd, topic, 3) == (-1, True)
        assert publish(nsqd, topic, 1, producer="q") == (2, False)
        log = log_of(nsqd, topic)
        assert (log["end"], log["duplicates"], log["producers"], log["producers_forgotten"]) == (3, 2, 2, 0)
        metrics = nsqd.request("GET", "/metrics").body.decode()
        assert f'nsq_topic_duplicates_total{{topic="{topic}"}} 2\n' in metrics
        assert f'nsq_topic_producers{{topic="{topic}"}} 2\n' in metrics

    @pytest.mark.parametrize("binary", ["true", "false"])
    def test_a_repeated_mpub_is_answered_and_not_stored(self, nsqd, topic, binary):
        body = mpub_body([b"one", b"two"]) if binary == "true" else b"one\n\ntwo\n"
        assert publish(nsqd, topic, 1, body, "/mpub", binary=binary) == (0, False)
        assert publish(nsqd, topic, 1, body, "/mpub", binary=binary) == (0, True)
        assert publish(nsqd, topic, 2, body, "/mpub", binary=binary) == (2, False)
        assert log_of(nsqd, topic)["end"] == 4

    def test_a_deferred_publish_has_an_offset(self, nsqd, topic):
        answer = nsqd.request("POST", "/pub", b"x", query={"topic": topic, "defer": "60000"})
        assert answer.headers["x-nsq-offset"] == "0"
        assert publish(nsqd, topic, 1, defer="60000") == (1, False)
        assert publish(nsqd, topic, 1, defer="60000") == (1, True)
        plain = nsqd.request("POST", "/pub", b"x", query={"topic": topic})
        assert "x-nsq-offset" not in plain.headers

    def test_a_batch_without_messages_is_not_a_publish(self, nsqd, topic):
        assert publish(nsqd, topic, 1, b"\n\n", "/mpub") == (-1, False)
        assert publish(nsqd, topic, 1, b"x", "/mpub") == (0, False)

    def test_a_batch_is_stored_wholly_up_to_the_limit(self, nsqd, topic):
        lines = b"x" * 100 + b"\n"
        assert publish(nsqd, topic, 1, lines * 20_000, "/mpub") == (0, False)
        assert publish(nsqd, topic, 1, lines * 20_000, "/mpub") == (0, True)
        assert log_of(nsqd, topic)["end"] == 20_000
        for query, body in (({}, b"x\n" * 20_001), ({"binary": "true"}, mpub_body([b"x"] * 20_001))):
            query = {"topic": topic, "producer": "p", "seq": "2", **query}
            answer = nsqd.request("POST", "/mpub", body, query=query)
            assert (answer.status, answer.json()) == (413, {"message": "TOO_MANY_MESSAGES"})

    @pytest.mark.parametrize("path", ["/pub", "/mpub"])
    @pytest.mark.parametrize(
        ("query", "code"),
        [
            ({"topic": "t", "producer": "a b", "seq": "1"}, "INVALID_PRODUCER"),
            ({"topic": "t", "seq": "1"}, "INVALID_PRODUCER"),
            ({"topic": "t", "producer": "p"}, "INVALID_SEQ"),
            ({"topic": "t", "producer": "p", "seq": "0"}, "INVALID_SEQ"),
            ({"topic": "classic", "producer": "p", "seq": "1"}, "NOT_A_LOG"),
        ],
    )
    def test_invalid_numbers_are_refused(self, nsqd, path, query, code):
        answer = nsqd.request("POST", path, b"x", query=query)
        assert (answer.status, answer.json()) == (400, {"message": code})


@pytest.mark.parametrize("durability", ["fsync", "write"])
def test_numbers_survive_kill_and_restart(tmp_path, durability):
    flags = ("--store=log", f"--durability={durability}")
    with start_nsqd("nsqx", *flags, data_path=tmp_path) as daemon:
        publish(daemon, "t", 5, b"one")
        daemon.kill()
    with start_nsqd("nsqx", *flags, data_path=tmp_path) as daemon:
        assert publish(daemon, "t", 5, b"one") == (0, True)
        publish(daemon, "t", 6, b"two")
    with start_nsqd("nsqx", *flags, data_path=tmp_path) as daemon:
        assert publish(daemon, "t", 6, b"two") == (1, True)
        assert log_of(daemon, "t")["end"] == 2
