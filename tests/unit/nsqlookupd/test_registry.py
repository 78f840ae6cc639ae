"""The registry: the rules about time with fake clocks, and everything else against a simple model."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from nsqx.nsqlookupd.registry import Peer, Registry
from nsqx.wire.lookup import Announcement

TIMEOUT_NS = 100
LIFETIME_NS = 10


class Clocks:
    def __init__(self):
        self.now_ns = 1000
        self.wall_ns = 5_000_000

    def registry(self):
        return Registry(TIMEOUT_NS, LIFETIME_NS, now_ns=lambda: self.now_ns, wall_ns=lambda: self.wall_ns)


def peer_at(registry, number=1):
    peer = Peer(f"127.0.0.1:{number}", Announcement(f"host{number}", 4150, 4151, "1.3.0"))
    registry.identify(peer)
    return peer


class TestTime:
    def test_silent_peers_are_not_listed(self):
        clocks = Clocks()
        registry = clocks.registry()
        peer = peer_at(registry)
        (topic,) = registry.register(peer, "t")
        clocks.now_ns += TIMEOUT_NS
        assert registry.producers([topic]) == registry.active_peers() == [peer]
        clocks.now_ns += 1
        assert registry.producers([topic]) == registry.active_peers() == []

    def test_a_ping_lists_a_silent_peer_again(self):
        clocks = Clocks()
        registry = clocks.registry()
        peer = peer_at(registry)
        clocks.now_ns += 5 * TIMEOUT_NS
        clocks.wall_ns += 7
        assert registry.ping(peer) == 5 * TIMEOUT_NS
        assert registry.active_peers() == [peer]
        assert peer.last_update_ns == 5_000_007

    def test_registering_does_not_count_as_a_ping(self):
        clocks = Clocks()
        registry = clocks.registry()
        peer = peer_at(registry)
        clocks.now_ns += TIMEOUT_NS + 1
        registry.register(peer, "t")
        assert registry.active_peers() == []

    def test_timeouts_do_not_use_the_wall_clock(self):
        clocks = Clocks()
        registry = clocks.registry()
        peer = peer_at(registry)
        clocks.wall_ns += 10**18
        assert registry.active_peers() == [peer]

    def test_tombstones_expire(self):
        clocks = Clocks()
        registry = clocks.registry()
        peer = peer_at(registry)
        (topic,) = registry.register(peer, "t")
        registry.tombstone("t", "host1:4151")
        clocks.now_ns += LIFETIME_NS - 1
        assert (registry.producers([topic]), registry.tombstones(peer)) == ([], [True])
        clocks.now_ns += 1
        assert (registry.producers([topic]), registry.tombstones(peer)) == ([peer], [False])
        assert topic.producers[peer].wall_ns == 5_000_000


class TestTombstones:
    def test_a_tombstone_applies_to_its_node_and_topic_only(self):
        registry = Clocks().registry()
        one, two = peer_at(registry, 1), peer_at(registry, 2)
        for peer in (one, two):
            registry.register(peer, "a")
            registry.register(peer, "b", "ch")
        registry.tombstone("b", "host2:4151")
        assert registry.producers(registry.topics("a")) == [one, two]
        assert registry.producers(registry.topics("b")) == [one]
        assert (registry.tombstones(one), registry.tombstones(two)) == ([False, False], [False, True])

    def test_a_tombstone_ends_when_a_producer_registers_after_unregistering(self):
        registry = Clocks().registry()
        peer = peer_at(registry)
        registry.register(peer, "t")
        registry.tombstone("t", "host1:4151")
        assert registry.register(peer, "t") == []
        assert registry.tombstones(peer) == [True]
        registry.unregister(peer, "t")
        registry.register(peer, "t")
        assert registry.tombstones(peer) == [False]

    def test_a_tombstone_may_apply_to_every_topic(self):
        registry = Clocks().registry()
        peer = peer_at(registry)
        registry.register(peer, "a")
        registry.register(peer, "b")
        registry.tombstone("*", "host1:4151")
        assert registry.producers(registry.topics()) == []


def test_a_peer_of_several_topics_is_listed_once():
    registry = Clocks().registry()
    peer = peer_at(registry)
    registry.register(peer, "a")
    registry.register(peer, "b")
    registry.tombstone("a", "host1:4151")
    assert registry.producers(registry.topics()) == [peer]


def test_an_ephemeral_channel_stays_while_it_has_producers():
    registry = Clocks().registry()
    one, two = peer_at(registry, 1), peer_at(registry, 2)
    for peer in (one, two):
        registry.register(peer, "t#ephemeral", "c#ephemeral")
    for peer, left in ((one, 1), (two, 0)):
        registry.unregister(peer, "t#ephemeral", "c#ephemeral")
        registry.unregister(peer, "t#ephemeral")
        assert (registry.topic_count, registry.channel_count) == (left, left)


def test_removed_registrations_are_returned_in_order():
    registry = Clocks().registry()
    peer = peer_at(registry)
    registry.register(peer, "t", "c1")
    registry.register(peer, "t", "c2")
    assert [str(one) for one in registry.leave(peer)] == [
        "category:channel key:t subkey:c1",
        "category:channel key:t subkey:c2",
        "category:topic key:t subkey:",
        "category:client key: subkey:",
    ]
    assert registry.leave(peer) == []
    assert [topic.key for topic in registry.topics()] == ["t"]
    assert [channel.subkey for channel in registry.channels("t")] == ["c1", "c2"]


TOPICS = st.sampled_from(["a", "b", "c#ephemeral"])
CHANNELS = st.sampled_from(["x", "y#ephemeral"])
PEERS = st.integers(0, 2)


class AgainstAModel(RuleBasedStateMachine):
    """The model is that of Go's nsqlookupd: one flat map from (category, key, subkey) to the ids of its producers."""

    def __init__(self):
        super().__init__()
        self.registry = Clocks().registry()
        self.model = {("client", "", ""): set()}
        self.peers = {}

    def peer(self, number):
        if number not in self.peers:
            self.peers[number] = peer_at(self.registry, number)
            self.model["client", "", ""].add(number)
        return self.peers[number]

    @rule(number=PEERS, topic=TOPICS, channel=st.just("") | CHANNELS)
    def register(self, number, topic, channel):
        added = self.registry.register(self.peer(number), topic, channel)
        keys = [("channel", topic, channel)] if channel else []
        keys.append(("topic", topic, ""))
        expected = [key for key in keys if number not in self.model.setdefault(key, set())]
        for key in keys:
            self.model[key].add(number)
        assert [key_of(one) for one in added] == expected

    @rule(number=PEERS, topic=TOPICS)
    def unregister_topic(self, number, topic):
        removed = self.registry.unregister(self.peer(number), topic)
        keys = [key for key in self.model if key[0] == "channel" and key[1] == topic]
        keys.append(("topic", topic, ""))
        self.check_removed(number, keys, removed)
        if topic.endswith("#ephemeral") and not self.model.get(("topic", topic, "")):
            self.model.pop(("topic", topic, ""), None)

    @rule(number=PEERS, topic=TOPICS, channel=CHANNELS)
    def unregister_channel(self, number, topic, channel):
        removed = self.registry.unregister(self.peer(number), topic, channel)
        key = ("channel", topic, channel)
        self.check_removed(number, [key], removed)
        if channel.endswith("#ephemeral") and not self.model.get(key):
            self.model.pop(key, None)

    @rule(number=PEERS)
    def leave(self, number):
        peer = self.peer(number)
        self.check_removed(number, list(self.model), self.registry.leave(peer))
        assert not peer.topics
        assert not peer.channels
        del self.peers[number]

    def check_removed(self, number, keys, removed):
        expected = [key for key in keys if number in self.model.get(key, ())]
        for key in expected:
            self.model[key].discard(number)
        assert sorted(key_of(one) for one in removed) == sorted(expected)

    @rule(topic=TOPICS)
    def create_topic(self, topic):
        self.registry.create_topic(topic)
        self.model.setdefault(("topic", topic, ""), set())

    @rule(topic=TOPICS, channel=CHANNELS)
    def create_channel(self, topic, channel):
        self.registry.create_channel(topic, channel)
        self.model.setdefault(("channel", topic, channel), set())

    @rule(topic=TOPICS | st.just("*"))
    def delete_topic(self, topic):
        gone = [key for key in self.model if key[0] != "client" and topic in ("*", key[1])]
        assert sorted(key_of(one) for one in self.registry.delete_topic(topic)) == sorted(gone)
        for key in gone:
            del self.model[key]

    @rule(topic=TOPICS, channel=CHANNELS)
    def delete_channel(self, topic, channel):
        known = self.model.pop(("channel", topic, channel), None) is not None
        assert self.registry.delete_channel(topic, channel) is known

    @invariant()
    def same_registrations(self):
        seen = {
            key_of(one): {int(peer.id.rpartition(":")[2]) for peer in one.producers}
            for one in self.registry.registrations()
        }
        assert seen == self.model

    @invariant()
    def same_lookups(self):
        topics = [key for key in self.model if key[0] == "topic"]
        channels = [key for key in self.model if key[0] == "channel"]
        assert (self.registry.topic_count, self.registry.channel_count) == (len(topics), len(channels))
        assert sorted(map(key_of, self.registry.topics())) == sorted(topics)
        assert sorted(map(key_of, self.registry.channels())) == sorted(channels)
        for name in ("a", "b", "c#ephemeral", "never"):
            assert sorted(map(key_of, self.registry.channels(name))) == sorted(
                key for key in channels if key[1] == name
            )
            assert list(map(key_of, self.registry.topics(name))) == [key for key in topics if key[1] == name]

    @invariant()
    def peers_refer_to_their_registrations(self):
        for number, peer in self.peers.items():
            for category, index in (("topic", peer.topics), ("channel", peer.channels)):
                expected = {key for key, ids in self.model.items() if key[0] == category and number in ids}
                assert {key_of(one) for one in index} == expected


def key_of(registration):
    return registration.category, registration.key, registration.subkey


TestAgainstAModel = AgainstAModel.TestCase
TestAgainstAModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
