"""Consume in batches: store many messages in one transaction, then finish them."""

import asyncio
import os
import sqlite3

from nsqx import Consumer

NSQD = os.environ.get("NSQD", "127.0.0.1:4150")
COUNT = int(os.environ.get("COUNT", "1000"))


async def main() -> None:
    database = sqlite3.connect(":memory:")
    # A message can be delivered twice, so its id is the primary key.
    database.execute("CREATE TABLE clicks (id BLOB PRIMARY KEY, body BLOB)")
    stored = 0
    async with Consumer("clicks", "archive", nsqd_tcp_addresses=NSQD, max_in_flight=500) as consumer:
        async for batch in consumer.batches(200, max_wait="500ms"):
            with database:
                database.executemany(
                    "INSERT OR IGNORE INTO clicks VALUES (?, ?)", [(message.id, message.body) for message in batch]
                )
            for message in batch:
                message.finish()
            stored += len(batch)
            if stored >= COUNT:
                break
    print(f"stored {database.execute('SELECT count(*) FROM clicks').fetchone()[0]} clicks")


asyncio.run(main())
