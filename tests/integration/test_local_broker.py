"""nsqx.testing: a broker in the process of a test, with a clock to advance."""

import asyncio
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nsqx import Consumer, Message, Producer, PublishTimedOut, blocking
from nsqx.testing import LocalBroker, LocalBrokerError

ROOT = Path(__file__).resolve().parents[2]
DAY_S = 24 * 3600


def test_messages_are_published_and_seen_without_a_client():
    with LocalBroker() as broker:
        broker.create("orders", "billing")
        broker.publish("orders", "one", b"\xff")
        assert broker.bodies("orders", "billing") == [b"one", b"\xff"]
        assert broker.stats("orders", "billing")["depth"] == 2
        assert broker.stats("orders")["message_count"] == 2


def test_waiting_for_a_channel_that_the_program_creates_later():
    with LocalBroker() as broker, ThreadPoolExecutor(1) as thread:
        with pytest.raises(TimeoutError, match="after 0.1 s: there is no channel billing in topic orders"):
            broker.wait_for("orders", "billing", timeout=0.1, depth=0)
        waiting = thread.submit(broker.wait_for, "orders", "billing", timeout=30, depth=1)
        broker.create("orders", "billing")
        broker.publish("orders", "one")
        waiting.result()
        with pytest.raises(TimeoutError, match="orders/billing: the stats have no dept"):
            broker.wait_for("orders", "billing", timeout=0, dept=1)
        with pytest.raises(LocalBrokerError, match="publish to orders: a body must be bytes or str, not int"):
            broker.publish("orders", 1)  # type: ignore[arg-type]


def test_a_synchronous_program_publishes():
    with LocalBroker() as broker:
        broker.create("orders", "billing")
        with blocking.Producer(broker.tcp_address) as producer:
            producer.publish("orders", b"one")
        assert broker.bodies("orders", "billing") == [b"one"]


async def test_a_deferred_message_is_delivered_when_the_clock_is_advanced():
    async with LocalBroker(max_req_timeout="48h") as broker:
        received = asyncio.Queue()
        broker.create("orders", "billing")
        broker.publish("orders", "tomorrow", defer=DAY_S)

        async def handle(message: Message) -> None:
            received.put_nowait(message.body)

        async with Consumer("orders", "billing", handle, nsqd_tcp_addresses=broker.tcp_address):
            broker.advance(DAY_S - 60)
            assert broker.stats("orders", "billing")["deferred_count"] == 1
            broker.advance("60s")
            assert await asyncio.wait_for(received.get(), 30) == b"tomorrow"
        await asyncio.to_thread(broker.wait_until_finished, "orders", "billing")


async def test_a_message_in_flight_times_out_when_the_clock_is_advanced():
    async with LocalBroker() as broker:
        broker.create("orders", "billing")
        broker.publish("orders", "one")
        attempts = []
        async with Consumer(
            "orders", "billing", nsqd_tcp_addresses=broker.tcp_address, max_in_flight=1, backoff_multiplier="0s"
        ) as consumer:
            async for message in consumer:
                attempts.append(message.attempts)
                if message.attempts == 1:
                    broker.advance("61s")
                message.finish()
                if message.attempts == 2:
                    break
        assert attempts == [1, 2]


def test_timers_call_back_in_order_and_time_passes_in_between():
    with LocalBroker() as broker:
        broker.create("orders", "billing")
        broker.publish("orders", "late", defer=600)
        broker.publish("orders", "soon", defer=0.05)
        with pytest.raises(TimeoutError, match="after 0.1 s: orders/billing: .*deferred_count is [12], not 0"):
            broker.wait_until_finished("orders", "billing", timeout=0.1)
        broker.wait_for("orders", "billing", timeout=30, depth=1)
        broker.advance(600)
        assert broker.bodies("orders", "billing") == [b"soon", b"late"]


async def test_a_frozen_broker_neither_reads_nor_answers():
    async with LocalBroker() as broker, Producer(broker.tcp_address, publish_timeout="200ms") as producer:
        await producer.publish("orders", b"one")
        with broker.frozen(), pytest.raises(PublishTimedOut):
            await producer.publish("orders", b"two")


@pytest.mark.parametrize("store", ["classic", "log"])
def test_a_restart_keeps_messages_and_ports(store):
    with LocalBroker(store=store) as broker:
        address = broker.tcp_address
        broker.create("orders", "billing")
        broker.publish("orders", "one")
        broker.restart()
        assert broker.tcp_address == address
        assert broker.bodies("orders", "billing") == [b"one"]


async def test_consumers_find_a_broker_through_nsqlookupd():
    async with LocalBroker(lookupd=True) as broker:
        broker.create("orders", "billing")
        broker.publish("orders", "one")
        async with Consumer("orders", "billing", lookupd_http_addresses=broker.lookupd_http_address) as consumer:
            async for message in consumer:
                assert message.body == b"one"
                message.finish()
                break


def test_a_data_path_of_the_caller_is_kept(tmp_path: Path):
    with LocalBroker(data_path=tmp_path) as broker:
        broker.create("orders")
    assert (tmp_path / "nsqd.dat").exists()
    broker = LocalBroker()
    broker.start()
    directory = Path(broker._directory)
    assert directory.exists()
    broker.stop()
    broker.stop()
    assert not directory.exists()


def test_mistakes_have_one_line(tmp_path: Path):
    with pytest.raises(LocalBrokerError, match="cannot start the broker: .*mem-queue"):
        LocalBroker(mem_queue=1).start()
    with pytest.raises(LocalBrokerError, match="cannot start the broker: .*msg.timeout"):
        LocalBroker(msg_timeout="0s").start()
    with pytest.raises(LocalBrokerError, match="cannot start the broker: .*absent"):
        LocalBroker(data_path=tmp_path / "absent").start()
    with pytest.raises(LocalBrokerError, match="invalid log level 'loud'"):
        LocalBroker(log_level="loud")
    with pytest.raises(LocalBrokerError, match="the broker is not running"):
        LocalBroker().publish("orders", "one")
    with LocalBroker() as broker:
        with pytest.raises(LocalBrokerError, match="running already"):
            broker.start()
        with pytest.raises(LocalBrokerError, match="INVALID_TOPIC"):
            broker.publish("bad name", "one")
        broker.create("orders")
        with pytest.raises(LocalBrokerError, match="there is no channel billing in topic orders"):
            broker.stats("orders", "billing")
        with pytest.raises(LocalBrokerError, match="there is no nsqlookupd: use LocalBroker"):
            _ = broker.lookupd_http_address
        with pytest.raises(LocalBrokerError, match="the clock only moves forward"):
            broker.advance(-1)
        with pytest.raises(LocalBrokerError, match="invalid duration 'soon'"):
            broker.advance("soon")


def test_the_fixtures_work_in_a_project_of_its_own(tmp_path: Path):
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["nsqx.testing.fixtures"]\n')
    (tmp_path / "test_project.py").write_text(
        "def test_one(nsq_broker):\n"
        "    nsq_broker.create('orders', 'billing')\n"
        "    nsq_broker.publish('orders', 'one')\n"
        "    assert nsq_broker.bodies('orders', 'billing') == [b'one']\n\n\n"
        "def test_two(start_nsq_broker):\n"
        "    first, second = start_nsq_broker(), start_nsq_broker(store='log')\n"
        "    assert first.tcp_address != second.tcp_address\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_the_example_passes_and_the_manual_has_its_text():
    example = ROOT / "examples" / "testing"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, str(example)]
    done = subprocess.run(command, cwd=example, env=os.environ, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stdout
    manual = (ROOT / "docs" / "testing.md").read_text()
    for file in example.glob("*.py"):
        assert file.read_text() in manual, file.name
