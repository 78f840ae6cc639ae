"""A worker that handles 50 messages at once and stops gracefully at SIGTERM: what it has begun is finished."""

import asyncio
import os

from nsqx import App
from nsqx.middlewares import HandlerMetrics

metrics = HandlerMetrics()
app = App(os.environ.get("NSQD", "127.0.0.1:4150"), middlewares=[metrics])
most_at_once = 0


@app.subscriber("emails", "worker", concurrency=50)
async def send(email: dict[str, str]) -> None:
    global most_at_once
    most_at_once = max(most_at_once, metrics.running("emails", "worker"))
    print(f"sending to {email['to']}", flush=True)
    await asyncio.sleep(float(os.environ.get("SECONDS", "0.2")))


async def main() -> None:
    await app.run(stop_timeout="20s")
    print(f"sent {metrics.count('emails', 'worker')}, at most {most_at_once} at once")


asyncio.run(main())
