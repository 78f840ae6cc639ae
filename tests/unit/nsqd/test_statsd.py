"""The lines that are pushed to statsd, and their packets."""

from broker_standin import NOW_NS, SECOND_NS, BrokerStandIn, ChannelStandIn, ClientStandIn, TopicStandIn, log_topic
from hypothesis import given
from hypothesis import strategies as st

from nsqx.nsqd.latency import LatencySketch
from nsqx.nsqd.stats import WITHOUT_CLIENTS, each_topic
from nsqx.nsqd.statsd import Packets, line_steps, memory_lines

MEMORY = {
    "heap_objects": 1,
    "heap_idle_bytes": 2,
    "heap_in_use_bytes": 3,
    "heap_released_bytes": 4,
    "gc_pause_usec_100": 5,
    "gc_pause_usec_99": 6,
    "gc_pause_usec_95": 7,
    "next_gc_bytes": 8,
    "gc_total_runs": 9,
}


def pushed(*pushes, memory=(), exclude_ephemeral=False):
    """Return the lines of the last push; each argument is the list of topics of one push."""
    found, previous = [], {}
    for number, topics in enumerate(pushes):
        found, current = [], {}
        for collector in each_topic(BrokerStandIn().add(*topics), NOW_NS, WITHOUT_CLIENTS):
            steps = line_steps(collector, previous, current, exclude_ephemeral=exclude_ephemeral)
            found += (line for line in steps if line is not None)
        if memory:
            found += memory_lines(memory[number], previous, current)
        previous = current
    return found


def packets(lines, packet_size):
    made = Packets("", packet_size)
    for line in lines:
        made.add(line)
    return made.all()


def topic_after(messages, requeues=0, timeouts=0):
    channel = ChannelStandIn(
        "c",
        depth=4,
        backend_depth=3,
        in_flight_count=2,
        deferred_count=1,
        message_count=messages,
        requeue_count=requeues,
        timeout_count=timeouts,
        clients={1: ClientStandIn()},
    )
    topic = TopicStandIn("t", depth=6, backend_depth=5, message_count=messages, message_bytes=10 * messages)
    return topic.add(channel)


def test_first_push_reports_totals():
    assert pushed([topic_after(7, 2, 1)]) == [
        "topic.t.message_count:7|c",
        "topic.t.message_bytes:70|c",
        "topic.t.depth:6|g",
        "topic.t.backend_depth:5|g",
        "topic.t.channel.c.message_count:7|c",
        "topic.t.channel.c.depth:4|g",
        "topic.t.channel.c.backend_depth:3|g",
        "topic.t.channel.c.in_flight_count:2|g",
        "topic.t.channel.c.deferred_count:1|g",
        "topic.t.channel.c.requeue_count:2|c",
        "topic.t.channel.c.timeout_count:1|c",
        "topic.t.channel.c.clients:1|g",
    ]


def test_log_topics_have_more_gauges():
    found = pushed([log_topic()])
    assert found[4:12] == [
        "topic.events.log_first_offset:100|g",
        "topic.events.log_stable_offset:240|g",
        "topic.events.log_end_offset:250|g",
        "topic.events.log_bytes:4096|g",
        "topic.events.log_segments:2|g",
        "topic.events.log_kept_bytes:1024|g",
        "topic.events.deferred_count:3|g",
        "topic.events.log_refused_count:9|g",
    ]
    assert found[-5:] == [
        "topic.events.channel.audit.floor_offset:120|g",
        "topic.events.channel.audit.next_offset:230|g",
        "topic.events.channel.audit.holes:4|g",
        "topic.events.channel.audit.dropped_count:5|g",
        "topic.events.channel.audit.expired_count:6|g",
    ]


def test_later_pushes_report_the_growth_of_counters():
    again = pushed([topic_after(7, 2, 1)], [topic_after(10, 2, 5)])
    assert [line for line in again if line.endswith("|c")] == [
        "topic.t.message_count:3|c",
        "topic.t.message_bytes:30|c",
        "topic.t.channel.c.message_count:3|c",
        "topic.t.channel.c.requeue_count:0|c",
        "topic.t.channel.c.timeout_count:4|c",
    ]


def test_the_counters_of_a_recreated_topic_start_at_0():
    assert pushed([topic_after(100)], [topic_after(3)])[0] == "topic.t.message_count:3|c"


def test_a_new_channel_reports_totals():
    previous = TopicStandIn("t", message_count=5)
    assert "topic.t.channel.c.message_count:7|c" in pushed([previous], [topic_after(7)])


def test_ephemeral_names_can_be_excluded():
    topics = (
        TopicStandIn("t").add(ChannelStandIn("c#ephemeral"), ChannelStandIn("durable")),
        TopicStandIn("u#ephemeral").add(ChannelStandIn("c")),
    )
    everything = pushed(topics)
    assert "topic.u#ephemeral.depth:0|g" in everything
    assert "topic.t.channel.c#ephemeral.depth:0|g" in everything
    durable = pushed(topics, exclude_ephemeral=True)
    assert [line for line in durable if "ephemeral" in line] == []
    assert "topic.t.channel.durable.depth:0|g" in durable


def test_latencies_are_named_by_percentage():
    sketch = LatencySketch((0.999, 0.95, 0.5), 600 * SECOND_NS)
    sketch.add(1_000_000, NOW_NS)
    topic = TopicStandIn("t").add(ChannelStandIn("c", latency=sketch))
    found = [line for line in pushed([topic]) if "latency" in line]
    value = sketch.result(NOW_NS)["percentiles"][0]["value"]
    assert found == [
        f"{name}.e2e_processing_latency_{percent}:{value}|g"
        for name in ("topic.t", "topic.t.channel.c")
        for percent in (100, 95, 50)
    ]


def test_memory_follows_the_topics():
    found = pushed([], [TopicStandIn("t")], memory=[{**MEMORY, "gc_total_runs": 4}, MEMORY])
    assert found[4:] == [
        "mem.heap_objects:1|g",
        "mem.heap_idle_bytes:2|g",
        "mem.heap_in_use_bytes:3|g",
        "mem.heap_released_bytes:4|g",
        "mem.gc_pause_usec_100:5|g",
        "mem.gc_pause_usec_99:6|g",
        "mem.gc_pause_usec_95:7|g",
        "mem.next_gc_bytes:8|g",
        "mem.gc_runs:5|c",
    ]


def test_first_push_counts_all_collections():
    assert pushed([], memory=[MEMORY])[-1] == "mem.gc_runs:9|c"


def test_packets_are_filled_line_by_line():
    assert packets(["aaa", "bbb", "c", "dddddddddd", "e"], 8) == [b"aaa\nbbb\n", b"c\n", b"dddddddddd\n", b"e\n"]


def test_without_lines_there_is_no_packet():
    assert packets([], 508) == []


@given(st.lists(st.text("abc", min_size=1, max_size=30)), st.integers(1, 60))
def test_packets_contain_every_line_and_stay_within_their_size(all_lines, packet_size):
    packed = packets(all_lines, packet_size)
    assert b"".join(packed) == "".join(line + "\n" for line in all_lines).encode()
    for packet in packed:
        assert len(packet) <= packet_size or packet.count(b"\n") == 1
    for packet, following in zip(packed, packed[1:], strict=False):
        first_line = following.split(b"\n")[0]
        assert len(packet) + len(first_line) + 1 > packet_size
