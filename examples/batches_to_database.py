"""Store messages in a database, many in each transaction. Each message is one row, also after a crash.

A message is finished after the commit. If the program is killed between the two, nsqd delivers the message again, and
the primary key shows that its row is there.
"""

import asyncio
import os
import signal
import sqlite3

from nsqx import Consumer, Message

NSQD = os.environ.get("NSQD", "127.0.0.1:4150")
DATABASE = os.environ.get("DATABASE", "clicks.db")


def give_up(message: Message) -> None:
    print(f"not stored: {message.body!r}: {message.error}", flush=True)


def store(database: sqlite3.Connection, batch: list[Message]) -> None:
    rows = [(message.id, message.timestamp, message.value["page"]) for message in batch]
    with database:
        database.executemany("INSERT OR IGNORE INTO clicks VALUES (?, ?, ?)", rows)


async def main() -> None:
    database = sqlite3.connect(DATABASE, check_same_thread=False)
    database.execute("CREATE TABLE IF NOT EXISTS clicks (id BLOB PRIMARY KEY, published_ns INTEGER, page TEXT)")
    consumer = Consumer(
        "clicks", "database", nsqd_tcp_addresses=NSQD, max_in_flight=500, codec=dict[str, str], on_give_up=give_up
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: asyncio.ensure_future(consumer.stop()))
    async for batch in consumer.batches(200, max_wait="500ms"):
        # A commit waits for the disk, so it runs in a thread.
        await asyncio.to_thread(store, database, batch)
        for message in batch:
            message.finish()
        print(f"stored {len(batch)}", flush=True)


asyncio.run(main())
