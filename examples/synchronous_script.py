"""Publish the lines of a file from a script without an event loop: `python synchronous_script.py < orders.jsonl`.

Exits with 1 and says which lines are missing if nsqd does not take all of them in time.
"""

import json
import os
import sys

from nsqx import PublishFailed, blocking

NSQD = os.environ.get("NSQD", "127.0.0.1:4150")

published = failed = 0
with blocking.Producer(NSQD, publish_timeout="5s") as producer:
    outcomes = []
    for number, line in enumerate(sys.stdin, 1):
        try:
            order = json.loads(line)
        except ValueError as error:
            failed += 1
            print(f"line {number}: {error}", file=sys.stderr)
            continue
        # submit does not wait, so many lines are on their way at once.
        outcomes.append((number, producer.submit("orders", json.dumps(order).encode())))
    for number, outcome in outcomes:
        try:
            outcome.result()
            published += 1
        except PublishFailed as error:
            failed += 1
            print(f"line {number}: {error}", file=sys.stderr)

print(f"published {published} orders, {failed} failed")
sys.exit(1 if failed else 0)
