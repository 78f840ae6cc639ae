"""gnsq on gevent."""

import gevent
import gnsq
from work import BATCH, BATCHES, MAX_IN_FLIGHT, WINDOW, address, body, count, finish, start, task, topic


def publish() -> None:
    producer = gnsq.Producer(address)
    producer.start()
    start()
    for _ in range(count // WINDOW):
        answers = [producer.publish(topic, body, raise_error=False) for _ in range(WINDOW)]
        for answer in answers:
            answer.get()
    finish()
    producer.close()


def publish_many() -> None:
    producer = gnsq.Producer(address)
    producer.start()
    batch = [body] * BATCH
    start()
    for _ in range(count // BATCH // BATCHES):
        answers = [producer.multipublish(topic, batch, raise_error=False) for _ in range(BATCHES)]
        for answer in answers:
            answer.get()
    finish()
    producer.close()


def consume() -> None:
    left = count
    consumer = gnsq.Consumer(topic, "ch", address, max_in_flight=MAX_IN_FLIGHT)

    @consumer.on_message.connect
    def handle(consumer, message):
        nonlocal left
        left -= 1
        if not left:
            finish()
            gevent.spawn(consumer.close)

    start()
    consumer.start()


{"publish": publish, "publish_many": publish_many, "consume": consume}[task]()
