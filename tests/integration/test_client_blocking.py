"""The blocking client against a real nsqd."""

import concurrent.futures
import os
import threading

import pytest

from daemons import Fleet, free_port
from nsqx import AlreadyAnswered, ClientClosed, ConfigError, ConnectFailed, InvalidName, blocking

BODIES = [b"%d" % number for number in range(1000)]


def unfinished_count(daemon, topic):
    channel = daemon.channel_stats(topic, "ch")
    return sum(channel[key] for key in ("depth", "in_flight_count", "deferred_count"))


def test_published_messages_are_consumed_by_iterating(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    with blocking.Producer(daemon.tcp_address) as producer:
        producer.publish(topic, b"one")
        producer.publish_many(topic, [b"two", b"three"])
        producer.publish_deferred(topic, b"four", "10ms", timeout=10)
    found = []
    with blocking.Consumer(topic, "ch", nsqd_tcp_addresses=daemon.tcp_address, max_in_flight=5) as consumer:
        for message in consumer:
            assert message.nsqd_address == daemon.tcp_address
            found.append(message.body)
            message.touch()
            if message.attempts == 1:
                message.requeue(0, backoff=False)
            else:
                message.finish()
            with pytest.raises(AlreadyAnswered):
                message.finish()
            if len(found) == 8:
                break
    assert sorted(found) == sorted([b"one", b"two", b"three", b"four"] * 2)
    assert unfinished_count(daemon, topic) == 0
    assert (consumer.stats.finished, consumer.stats.requeued) == (4, 4)


def test_submit_returns_a_future_without_waiting(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx", "--max-msg-size=100")
    producer = blocking.Producer(daemon.tcp_address)
    outcomes = [producer.submit(topic, body) for body in BODIES]
    outcomes.append(producer.submit_many(topic, BODIES))
    too_big = producer.submit(topic, bytes(200))
    invalid = producer.submit("no good", b"x")
    producer.close()
    assert all(outcome.result() is None for outcome in outcomes)
    with pytest.raises(Exception, match="message too big 200 > 100"):
        too_big.result()
    with pytest.raises(InvalidName):
        invalid.result()
    with pytest.raises(ClientClosed):
        producer.publish(topic, b"x")
    assert daemon.topic_stats(topic)["message_count"] >= 2000


def test_many_threads_can_publish_at_once(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    with blocking.Producer(daemon.tcp_address) as producer, concurrent.futures.ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda body: producer.publish(topic, body), BODIES))
    assert daemon.topic_stats(topic)["message_count"] == len(BODIES)


def test_take_returns_batches(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    with blocking.Producer(daemon.tcp_address) as producer:
        producer.publish_many(topic, BODIES)
    found = []
    with blocking.Consumer(topic, "ch", nsqd_tcp_addresses=daemon.tcp_address, max_in_flight=300) as consumer:
        while len(found) < len(BODIES):
            batch = consumer.take(100, max_wait="5s")
            assert len(batch) == 100
            for message in batch:
                found.append(message.body)
                message.finish()
        assert consumer.take(1, max_wait=0) == []
        assert consumer.get(timeout="1ms") is None
    assert sorted(found) == sorted(BODIES)


def test_messages_that_were_not_taken_are_requeued_on_close(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    with blocking.Producer(daemon.tcp_address) as producer:
        producer.publish_many(topic, BODIES[:10])
    with blocking.Consumer(topic, "ch", nsqd_tcp_addresses=daemon.tcp_address, max_in_flight=10) as consumer:
        for message in consumer.take(4, max_wait="5s"):
            message.finish()
    channel = daemon.channel_stats(topic, "ch")
    assert (channel["depth"], channel["in_flight_count"]) == (6, 0)


def test_a_handler_finishes_and_requeues_messages(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    with blocking.Producer(daemon.tcp_address) as producer:
        producer.publish_many(topic, BODIES[:20])
    handled = []
    enough = threading.Event()
    consumer = blocking.Consumer(
        topic,
        "ch",
        nsqd_tcp_addresses=daemon.tcp_address,
        max_in_flight=5,
        default_requeue_delay="1ms",
        backoff_multiplier="1ms",
    )

    def handler(message):
        if message.body == b"7" and message.attempts == 1:
            raise ValueError("once")
        handled.append((message.body, message.attempts))
        if len(handled) == 20:
            enough.set()

    thread = threading.Thread(target=consumer.run, args=(handler,))
    thread.start()
    assert enough.wait(20)
    consumer.close()
    thread.join()
    assert sorted(handled) == sorted((body, 2 if body == b"7" else 1) for body in BODIES[:20])
    assert unfinished_count(daemon, topic) == 0


def test_closing_ends_every_thread_that_waits_for_a_message(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    consumer = blocking.Consumer(topic, "ch", nsqd_tcp_addresses=daemon.tcp_address)
    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        ends = [threads.submit(list, consumer) for _ in range(3)]
        consumer.close()
        assert [end.result(20) for end in ends] == [[], [], []]
    assert consumer.get() is None


def test_a_handler_is_an_argument_of_run(fleet: Fleet, topic):
    with pytest.raises(ConfigError, match=r"handler: pass it to run\(\)"):
        blocking.Consumer(topic, "ch", handler=print, nsqd_tcp_addresses=fleet.nsqd("nsqx").tcp_address)


def test_a_cancelled_submit_is_not_published_and_harms_no_other(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    with blocking.Producer(daemon.tcp_address) as producer:
        entered, released = threading.Event(), threading.Event()

        def block():
            entered.set()
            released.wait(20)

        producer._thread.call(block)  # so that the next calls share one wake-up
        assert entered.wait(20)
        cancelled = [producer.submit("not good", b"1"), producer.submit(topic, b"2")]
        assert all(future.cancel() for future in cancelled)
        other = producer.submit(topic, b"3")
        released.set()
        other.result(20)
    assert daemon.topic_stats(topic)["message_count"] == 1


def test_invalid_arguments_are_rejected():
    address = f"127.0.0.1:{free_port()}"
    before = threading.active_count()
    with pytest.raises(ConnectFailed, match="Connection refused"):
        blocking.Producer(address, require_connection=True)
    with pytest.raises(ConnectFailed, match="Connection refused"):
        blocking.Consumer("t", "c", nsqd_tcp_addresses=address, require_connection=True)
    with pytest.raises(ConfigError, match="invalid option nope"):
        blocking.Producer(address, nope=1)
    with pytest.raises(InvalidName):
        blocking.Consumer("not good", "c", nsqd_tcp_addresses=address)
    assert threading.active_count() == before


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_client_cannot_be_used_after_a_fork(fleet: Fleet, topic):
    daemon = fleet.nsqd("nsqx")
    with blocking.Producer(daemon.tcp_address) as producer:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                producer.publish(topic, b"x")
            except ClientClosed:
                code = 7
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        producer.publish(topic, b"x")
