"""Publish and consume without an event loop."""

import os

from nsqx import blocking

NSQD = os.environ.get("NSQD", "127.0.0.1:4150")

with blocking.Producer(NSQD) as producer:
    producer.publish("jobs", b"job 0")
    outcomes = [producer.submit("jobs", b"job %d" % number) for number in range(1, 100)]
    for outcome in outcomes:
        outcome.result()

with blocking.Consumer("jobs", "worker", nsqd_tcp_addresses=NSQD, max_in_flight=20) as consumer:
    done = 0
    for message in consumer:
        message.finish()
        done += 1
        if done == 100:
            break

print(f"did {done} jobs")
