"""One connection's publications: answers in order, limits, refusals and the end."""

import asyncio

import pytest
from client_bench import ConnectionBench, error_frame

from nsqx.client.publisher import NEVER_S, Publisher, earliest_deadline_s, new_publication
from nsqx.errors import PublishTimedOut
from nsqx.wire import frames


class Owner:
    """Takes note of what a publisher tells."""

    def __init__(self):
        self.rooms = 0
        self.refused = []
        self.lost = []

    def on_room(self, publisher):
        self.rooms += 1

    def on_refused(self, publisher, publication, text):
        self.refused.append((publication, text))

    def on_lost(self, publisher, publications, error):
        self.lost.append((list(publications), error))


class Bench(ConnectionBench):
    def __init__(self, max_count=100, max_bytes=1000):
        super().__init__()
        self.owner = Owner()
        self.publisher = Publisher(self.connection, self.owner, max_count, max_bytes)
        self.connection.start(self.publisher)

    def publish(self, body=b"x", timeout_s=60.0):
        future = asyncio.get_running_loop().create_future()
        publication = new_publication("t", b"PUB t\n", body, future, timeout_s)
        self.publisher.publish(publication)
        return publication


def states(publications):
    return [publication.future.done() for publication in publications]


async def test_answers_come_in_order():
    bench = Bench()
    publications = [bench.publish() for _ in range(5)]
    assert await bench.sent() == b"PUB t\n\x00\x00\x00\x01x" * 5
    bench.receive(frames.OK, frames.HEARTBEAT, frames.OK)
    assert states(publications) == [True, True, False, False, False]
    assert await bench.sent() == b"NOP\n"
    bench.receive(frames.OK * 3)
    assert all(states(publications))
    assert (bench.publisher.count_under_way(), bench.publisher.bytes_under_way) == (0, 0)


async def test_one_write_a_turn():
    bench = Bench()
    for _ in range(50):
        bench.publish()
    await asyncio.sleep(0)
    assert len(bench.transport.writes) == 1


async def test_large_bodies_are_not_copied():
    bench = Bench(max_bytes=10**9)
    bench.publish()
    large = b"y" * 100_000
    bench.publish(large)
    bench.publish()
    await asyncio.sleep(0)
    assert bench.transport.writes[1] == large
    assert len(bench.transport.writes) == 3


@pytest.mark.parametrize(("limits", "count"), [({"max_count": 3}, 3), ({"max_bytes": 25}, 3)])
async def test_room(limits, count):
    bench = Bench(**limits)
    while bench.publisher.has_room():
        bench.publish(b"x" * 10)
    assert bench.publisher.count_under_way() == count
    told = bench.owner.rooms
    bench.receive(frames.OK)
    assert bench.publisher.has_room()
    assert bench.owner.rooms == told + 1


async def test_no_room_while_the_socket_is_full():
    bench = Bench()
    bench.transport.unsent = 10
    bench.connection.pause_writing()
    assert not bench.publisher.has_room()
    bench.connection.resume_writing()
    assert bench.publisher.has_room()
    assert bench.owner.rooms > 0


async def test_a_refusal_is_for_the_oldest():
    bench = Bench()
    publications = [bench.publish() for _ in range(3)]
    bench.receive(frames.OK, error_frame(b"E_BAD_MESSAGE PUB nope"))
    assert bench.owner.refused == [(publications[1], "E_BAD_MESSAGE PUB nope")]
    assert not bench.publisher.has_room()
    bench.transport.close()
    await asyncio.sleep(0)
    assert bench.owner.lost == [([publications[2]], None)]


async def test_an_answer_too_many_ends_the_connection():
    bench = Bench()
    bench.publish()
    bench.receive(frames.OK * 2)
    await asyncio.sleep(0)
    assert bench.transport.is_aborted
    ((publications, error),) = bench.owner.lost
    assert len(publications) == 1
    assert str(error) == "127.0.0.1:4150: nsqd sent an answer without a command"


async def test_a_cancelled_publication_is_answered_all_the_same():
    bench = Bench()
    publications = [bench.publish() for _ in range(2)]
    publications[0].future.cancel()
    assert publications[0].is_abandoned()
    bench.receive(frames.OK * 2)
    assert publications[1].future.result() is None


async def test_joined_publications_share_one_answer():
    bench = Bench()
    members = [
        new_publication("t", b"PUB t\n", b"x", asyncio.get_running_loop().create_future(), 60.0) for _ in range(3)
    ]
    joined = new_publication("t", b"MPUB t\n", b"...", None, 60.0)
    joined.members = members
    assert not joined.is_abandoned()
    bench.publisher.publish(joined)
    bench.receive(frames.OK)
    assert all(states(members))
    assert joined.is_abandoned()
    failing = new_publication("t", b"MPUB t\n", b"...", None, 60.0)
    failing.members = [new_publication("t", b"PUB t\n", b"x", asyncio.get_running_loop().create_future(), 60.0)]
    failing.fail(ValueError("no"))
    with pytest.raises(ValueError):
        await failing.members[0].future


async def test_an_expired_publication_keeps_its_place_for_the_late_answer():
    bench = Bench()
    hasty, patient = bench.publish(timeout_s=5.0), bench.publish(timeout_s=50.0)
    assert earliest_deadline_s([hasty, patient]) == hasty.deadline_s
    assert bench.publisher.expire(hasty.deadline_s - 1) == hasty.deadline_s
    assert states([hasty, patient]) == [False, False]
    assert bench.publisher.expire(hasty.deadline_s + 1) == patient.deadline_s
    assert bench.publisher.count_under_way() == 1
    with pytest.raises(PublishTimedOut, match="after 5 s: 127.0.0.1:4150: nsqd did not answer; the message may"):
        await hasty.future
    bench.receive(frames.OK)
    assert not patient.future.done()
    assert bench.publisher.count_under_way() == 1
    bench.receive(frames.OK)
    assert patient.future.done()
    assert bench.publisher.expire(NEVER_S) == NEVER_S


async def test_members_of_a_batch_expire_by_themselves():
    create_future = asyncio.get_running_loop().create_future
    members = [new_publication("t", b"PUB t\n", b"%d" % each, create_future(), float(each)) for each in (10, 20, 30)]
    joined = new_publication("t", b"MPUB t\n", b"...", None, 60.0)
    joined.members = members
    joined.deadline_s = earliest_deadline_s(members)
    joined.expire(joined.deadline_s + 11, "nothing is connected", False)
    assert states(members) == [True, True, False]
    assert joined.deadline_s == members[2].deadline_s
    joined.drop_finished_members()
    assert joined.members == [members[2]]
    assert joined.body == b"\x00\x00\x00\x01\x00\x00\x00\x0230"
    for member in members[:2]:
        with pytest.raises(PublishTimedOut, match="; the message was not sent"):
            await member.future


async def test_how_long_an_answer_is_owed():
    bench = Bench()
    assert bench.publisher.unanswered_s(1e9) == 0.0
    publication = bench.publish()
    assert bench.publisher.unanswered_s(publication.created_s) <= 0.0
    bench.receive(frames.OK)
    assert bench.publisher.unanswered_s(1e9) == 0.0
