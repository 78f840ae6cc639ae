"""A broker with an attempt limit of 3, and clients that fail."""

from broker_bench import Bench
from nsqx.nsqd.metadata import SavedTopic

LIMIT = {"max_attempts": 3}


class LetterBench(Bench):
    """A broker with an attempt limit of 3. ``crash`` is a kill -9."""

    def __init__(self, data_path, clock=None, saved=(), **options):
        super().__init__(data_path, clock, saved, **{**LIMIT, **options})
        self.data_path = data_path
        self.given = options

    def crash(self, **options):
        return LetterBench(self.data_path, self.clock, **{**self.given, **options})

    def restart(self, **options):
        saved = [] if self.given["store"] == "log" else saved_topics(self.broker)
        self.broker.close_topics()
        return LetterBench(self.data_path, self.clock, saved, **{**self.given, **options})

    def counts(self, topic="t", channel="c"):
        found = self.broker.topic(topic).channel(channel)
        return found.depth, found.in_flight_count, found.deferred_count

    def letters(self, topic="t.dead"):
        """Return the bodies that wait in the channel ``dead``; they are finished."""
        client = self.consume(topic, "dead", 100)
        messages = client.link.take_messages()
        for message in messages:
            client.channel.finish(client, message.id)
        self.leave(client)
        return [message.body for message in messages]

    def kill_messages(self, *bodies, topic="t", channel="c"):
        """Publish messages, and fail them until they are dead letters."""
        client = self.consume(topic, channel, len(bodies))
        self.publish(topic, *bodies)
        fail_until_dead(self, client)
        self.leave(client)


def saved_topics(broker):
    return [
        SavedTopic(topic.name, topic.paused, [(name, channel.paused) for name, channel in topic.channels.items()])
        for topic in broker.topics.values()
    ]


def fail_once(bench, client, delay_ns=0):
    """Requeue what the client has got; return the attempts."""
    messages = client.link.take_messages()
    for message in messages:
        assert client.channel.requeue(client, message.id, delay_ns) is None
    bench.settle()
    return [message.attempts for message in messages]


def fail_until_dead(bench, client, count=3):
    attempts = []
    for _ in range(count):
        attempts += fail_once(bench, client)
    return attempts
