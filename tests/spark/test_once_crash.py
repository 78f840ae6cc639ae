"""An nsqd that is killed at a step of a transaction, and a client that repeats: each batch is stored once."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from daemons import Daemon, start_nsqd, wait_until
from nsqx.queues.log.stored import StoredLogs
from nsqx.spark.ledger_client import BatchId, LedgerClient, StagedName
from nsqx.spark.log_sink import encode_group
from nsqx.spark.options import read_once_options

BATCHES = 3
TOPICS = ("one", "two")
POINTS = (
    "stage.write=tear@2",
    "stage.rename=stop@3",
    "stage.read=stop@3",
    "commit.writev=tear@3",
    "commit.datasync=stop@4",
    "stage.unlink=stop@2",
)


class StartedAgain:
    """An nsqd that is killed by a failpoint, and then started again on its ports without one."""

    def __init__(self, data_path: Path, failpoint: str) -> None:
        self._data_path = data_path
        self._daemon = start_nsqd("nsqx", "--store=log", data_path=data_path, env={"NSQX_FAILPOINTS": failpoint})
        self.address = self._daemon.tcp_address
        self._flags = (f"--tcp-address={self.address}", f"--http-address={self._daemon.http_address}")
        self.second: Daemon | None = None
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._is_closing.wait(0.02):
            if not self._daemon.running:
                self._daemon.close()
                self.second = start_nsqd("nsqx", "--store=log", *self._flags, data_path=self._data_path)
                return

    def close(self) -> None:
        self._is_closing.set()
        self._thread.join()
        (self.second or self._daemon).close()


async def write(address: str) -> None:
    """Stage and commit batches, each with two parts for two topics, and commit each a second time."""
    given = {"exactlyOnce": "true", "nsq.nsqd": address, "commitTimeout": "120s"}
    client = LedgerClient(read_once_options(given, has_topic_column=True, is_stream=True))
    for number in range(BATCHES):
        batch = BatchId("query", number)
        names = [StagedName(str(part), "0") for part in range(2)]
        for name in names:
            bodies = [b"%d-%s-%d" % (number, name.part.encode(), row) for row in range(20)]
            body = b"".join(encode_group(topic, bodies, 0) for topic in TOPICS)
            await client.stage(batch, name, body)
        await client.commit(batch, names)
        assert not await client.commit(batch, names)


@pytest.mark.parametrize("failpoint", POINTS)
def test_batches_are_stored_once_although_nsqd_is_killed(tmp_path: Path, failpoint: str) -> None:
    nsqd = StartedAgain(tmp_path, failpoint)
    try:
        asyncio.run(write(nsqd.address))
        # Parts are removed after the answer to a commit.
        wait_until(lambda: nsqd.second is not None, "the failpoint is reached and nsqd starts again", 60)
    finally:
        nsqd.close()
    expected = sorted(b"%d-%d-%d" % (n, part, row) for n in range(BATCHES) for part in range(2) for row in range(20))
    stored = {log.topic: sorted(message.body for message in log.messages(0)) for log in StoredLogs(str(tmp_path)).logs}
    assert stored == dict.fromkeys(TOPICS, expected)
