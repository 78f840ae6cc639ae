"""A broker without sockets that writes nsqd.dat, for tests of conversions between the stores."""

import asyncio

from broker_bench import Bench, Saved
from nsqx.nsqd.metadata import encode_metadata, load_metadata, metadata_path
from nsqx.queues.files import replace_file


class NoFuture:
    """A future that nothing waits for."""

    def done(self):
        return True


class SavingStore:
    """Saves nsqd.dat at once. While ``is_failing`` is set, saves fail."""

    def __init__(self, broker):
        self.is_failing = False
        self._broker = broker

    def save(self, *, is_urgent=False):
        if not self.is_failing:
            replace_file(metadata_path(self._broker.data_path), encode_metadata(self._broker.topics.values()))
        return SavedFuture(not self.is_failing)

    def hurry(self):
        pass


class SavedFuture(Saved):
    def __init__(self, is_saved):
        self._is_saved = is_saved

    def result(self):
        return self._is_saved

    def __await__(self):
        yield from ()
        return self._is_saved


class ConversionBench(Bench):
    """A broker with nsqd.dat. ``crash`` is a kill -9."""

    def __init__(self, data_path, store, clock=None, **options):
        super().__init__(data_path, clock, load_metadata(str(data_path)), store=store, **options)
        self.data_path = data_path

    def start(self, saved):
        self.metadata_store = self.broker.metadata_store = SavingStore(self.broker)
        super().start(saved)
        self.metadata_store.save()

    def crash(self, store, **options):
        return ConversionBench(self.data_path, store, self.clock, **options)

    def restart(self, store, **options):
        self.broker.metadata_store.save()
        self.broker.exiting = True
        self.broker.close_topics()
        return self.crash(store, **options)

    def convert(self, store, topic_name="t", *, finishes=True):
        """Choose the store as the HTTP API does; return True if a conversion has begun."""
        coroutine = self.broker.conversions.convert(self.broker.topics[topic_name], store)
        loop = asyncio.new_event_loop()
        try:
            task = loop.create_task(coroutine)
            for _ in range(20):
                loop.run_until_complete(asyncio.sleep(0))
                if task.done():
                    break
                self.settle()
            if finishes:
                self.settle()
            return loop.run_until_complete(task)
        finally:
            loop.close()

    def begin(self, store, topic_name="t"):
        """Switch the store of a topic. Its messages are moved when jobs end."""
        conversions, topic = self.broker.conversions, self.broker.topics[topic_name]
        self.broker.turn.run(self.broker.commits.after_writes, lambda: conversions._switch(topic, store, NoFuture()))
        self.settle()

    def counts(self, channel_name="c", topic_name="t"):
        channel = self.broker.topic(topic_name).channel(channel_name)
        return channel.depth, channel.in_flight_count, channel.deferred_count

    def store_of(self, topic_name="t"):
        return "classic" if self.broker.topics[topic_name].log_stats() is None else "log"

    def files(self):
        names = (path.name for path in self.data_path.iterdir())
        return {name for name in names if ".diskqueue." in name or name.endswith((".topic", ".deferred.dat"))}


def received(bench, channel_name="c", count=100, topic_name="t"):
    client = bench.consume(topic_name, channel_name, count)
    bench.settle()
    messages = client.link.take_messages()
    for message in messages:
        assert client.channel.finish(client, message.id) is None
    bench.settle()
    bench.leave(client)
    return messages
