"""Tasks of taskiq on a real nsqd: executed once, later, again after the death of a worker, and by several workers."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

taskiq = pytest.importorskip("taskiq", reason="pip install taskiq")

from taskiq.api import run_receiver_task  # noqa: E402

from daemons import Fleet, wait_until  # noqa: E402
from nsqx import ConfigError  # noqa: E402
from nsqx.adapters.taskiq import NSQBroker  # noqa: E402
from nsqx.testing import LocalBroker  # noqa: E402

WORKER = """
import asyncio, os, sys
from nsqx.adapters.taskiq import NSQBroker

broker = NSQBroker(os.environ["NSQD"], msg_timeout="2s")


@broker.task(task_name="write")
async def write(name: str, seconds: float) -> None:
    with open(os.environ["OUTPUT"], "a") as output:
        print("begin", name, file=output)
    await asyncio.sleep(seconds)
    with open(os.environ["OUTPUT"], "a") as output:
        print("end", name, file=output)
"""


async def test_tasks_are_executed_and_finished():
    done: asyncio.Queue[int] = asyncio.Queue()
    async with LocalBroker() as nsqd:
        broker = NSQBroker(nsqd.tcp_address, max_in_flight=10)

        @broker.task(task_name="double")
        async def double(number: int) -> None:
            done.put_nowait(2 * number)

        nsqd.create("tasks", "workers")
        broker.is_worker_process = True
        await broker.startup()
        receiver = asyncio.create_task(run_receiver_task(broker))
        for number in range(20):
            await double.kiq(number)
        results = [await asyncio.wait_for(done.get(), 30) for _ in range(20)]
        assert sorted(results) == list(range(0, 40, 2))
        await asyncio.to_thread(nsqd.wait_until_finished, "tasks", "workers")
        assert nsqd.stats("tasks", "workers")["requeue_count"] == 0
        receiver.cancel()
        await asyncio.gather(receiver, return_exceptions=True)
        await broker.shutdown()


async def test_a_delayed_task_is_executed_when_it_is_due():
    done = asyncio.Event()
    async with LocalBroker() as nsqd:
        broker = NSQBroker(nsqd.tcp_address, topic="mail")

        @broker.task(task_name="send")
        async def send() -> None:
            done.set()

        nsqd.create("mail", "workers")
        await broker.startup()
        await send.kicker().with_labels(delay=600).kiq()
        receiver = asyncio.create_task(run_receiver_task(broker))
        assert nsqd.stats("mail", "workers")["deferred_count"] == 1
        assert not done.is_set()
        nsqd.advance(600)
        await asyncio.wait_for(done.wait(), 30)
        receiver.cancel()
        await asyncio.gather(receiver, return_exceptions=True)
        await broker.shutdown()


async def test_a_task_can_go_to_another_topic():
    async with LocalBroker() as nsqd:
        broker = NSQBroker(nsqd.tcp_address)

        @broker.task(task_name="send", topic="urgent")
        async def send() -> None: ...

        nsqd.create("urgent", "workers")
        await broker.startup()
        await send.kiq()
        assert nsqd.stats("urgent", "workers")["depth"] == 1
        await broker.shutdown()


@pytest.mark.parametrize("delay", ["soon", -1, "nan"])
async def test_an_invalid_delay_is_refused(delay):
    async with LocalBroker() as nsqd:
        broker = NSQBroker(nsqd.tcp_address)

        @broker.task(task_name="send")
        async def send() -> None: ...

        with pytest.raises(Exception, match="Cannot send") as raised:
            await send.kicker().with_labels(delay=delay).kiq()
        cause = raised.value.__cause__
        assert isinstance(cause, ConfigError)
        assert "use a number of seconds" in str(cause)
        await broker.shutdown()


def test_a_task_is_executed_again_when_its_worker_dies(fleet: Fleet, tmp_path: Path):
    nsqd = fleet.nsqd("nsqx")
    nsqd.post("/topic/create", topic="tasks")
    nsqd.post("/channel/create", topic="tasks", channel="workers")
    (tmp_path / "worker.py").write_text(WORKER)
    output = tmp_path / "output"
    output.touch()
    environment = {**os.environ, "NSQD": nsqd.tcp_address, "OUTPUT": str(output)}

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "taskiq", "worker", "worker:broker", "--workers=1", "--log-level=ERROR"]
        return subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True)

    publish = "import asyncio, worker\nasync def main():\n await worker.broker.startup()\n"
    publish += " await worker.write.kiq('long', 5.0)\n await worker.broker.shutdown()\nasyncio.run(main())"
    subprocess.run([sys.executable, "-c", publish], cwd=tmp_path, env=environment, check=True, timeout=50)
    workers = [start()]
    try:
        wait_until(lambda: "begin long" in output.read_text(), "the task has begun", 50)
        os.killpg(workers[0].pid, signal.SIGKILL)
        workers.append(start())
        # It takes longer than the message timeout, so the message is touched.
        wait_until(lambda: "end long" in output.read_text(), "the task is executed", 50)
        wait_until(lambda: nsqd.channel_stats("tasks", "workers")["in_flight_count"] == 0, "it is finished", 30)
        assert output.read_text().splitlines() == ["begin long", "begin long", "end long"]
        os.killpg(workers[1].pid, signal.SIGTERM)
        assert workers[1].wait(30) is not None
    finally:
        for worker in workers:
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait(10)
