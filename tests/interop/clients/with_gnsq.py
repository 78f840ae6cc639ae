"""The workload with gnsq on gevent."""

import gevent
import gnsq
from workload import BATCH, LATER, LATER_MS, MAX_IN_FLIGHT, SINGLES, TOUCHED, Arguments, Tally, wait_for_stdin_end

arguments = Arguments()
tally = Tally()

# Without options: gnsq's producer fails on the OK that follows an upgrade. Its consumer does not.
producer = gnsq.Producer(arguments.address)
producer.start()
for body in SINGLES:
    assert producer.publish(arguments.topic, body) == b"OK"
assert producer.multipublish(arguments.topic, BATCH) == b"OK"
assert producer.publish(arguments.topic, LATER, defer=LATER_MS) == b"OK"
producer.close()

consumer = gnsq.Consumer(
    arguments.topic, arguments.channel, arguments.address, max_in_flight=MAX_IN_FLIGHT, **arguments.options
)


@consumer.on_message.connect
def handle(consumer, message):
    message.enable_async()
    if tally.must_requeue(message.body, message.attempts):
        message.requeue(0, backoff=False)
        return
    if message.body == TOUCHED:
        message.touch()
    message.finish()
    if tally.finish(message.body):
        gevent.spawn(leave)


def leave():
    tally.report()
    gevent.get_hub().threadpool.apply(wait_for_stdin_end)
    consumer.close()


consumer.start()
