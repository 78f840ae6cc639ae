"""The unanswered publications of one connection: order, limits, errors and the end of the connection."""

import asyncio

import pytest
from connection_harness import ConnectionHarness, error_frame

from nsqx.client.publisher import NEVER_S, Publisher, earliest_deadline_s, new_publication
from nsqx.errors import PublishTimedOut
from nsqx.wire import frames


class Owner:
    """Records the calls of a publisher."""

    def __init__(self):
        self.rooms = 0
        self.refused = []
        self.lost = []

    def _on_room(self, publisher):
        self.rooms += 1

    def _on_refused(self, publisher, publication, text):
        self.refused.append((publication, text))

    def _on_lost(self, publisher, publications, error):
        self.lost.append((list(publications), error))


class PublisherHarness(ConnectionHarness):
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


async def test_answers_are_matched_in_order():
    harness = PublisherHarness()
    publications = [harness.publish() for _ in range(5)]
    assert await harness.sent() == b"PUB t\n\x00\x00\x00\x01x" * 5
    harness.receive(frames.OK, frames.HEARTBEAT, frames.OK)
    assert states(publications) == [True, True, False, False, False]
    assert await harness.sent() == b"NOP\n"
    harness.receive(frames.OK * 3)
    assert all(states(publications))
    assert (harness.publisher.count_under_way(), harness.publisher.bytes_under_way) == (0, 0)


async def test_commands_of_one_loop_turn_are_one_write():
    harness = PublisherHarness()
    for _ in range(50):
        harness.publish()
    await asyncio.sleep(0)
    assert len(harness.transport.writes) == 1


async def test_large_bodies_are_not_copied():
    harness = PublisherHarness(max_bytes=10**9)
    harness.publish()
    large = b"y" * 100_000
    harness.publish(large)
    harness.publish()
    await asyncio.sleep(0)
    assert harness.transport.writes[1] == large
    assert len(harness.transport.writes) == 3


@pytest.mark.parametrize(("limits", "count"), [({"max_count": 3}, 3), ({"max_bytes": 25}, 3)])
async def test_there_is_room_up_to_the_limits(limits, count):
    harness = PublisherHarness(**limits)
    while harness.publisher.has_room():
        harness.publish(b"x" * 10)
    assert harness.publisher.count_under_way() == count
    told = harness.owner.rooms
    harness.receive(frames.OK)
    assert harness.publisher.has_room()
    assert harness.owner.rooms == told + 1


async def test_there_is_no_room_while_the_socket_is_full():
    harness = PublisherHarness()
    harness.transport.unsent = 10
    harness.connection.pause_writing()
    assert not harness.publisher.has_room()
    harness.connection.resume_writing()
    assert harness.publisher.has_room()
    assert harness.owner.rooms > 0


async def test_an_error_frame_is_for_the_oldest_publication():
    harness = PublisherHarness()
    publications = [harness.publish() for _ in range(3)]
    harness.receive(frames.OK, error_frame(b"E_BAD_MESSAGE PUB nope"))
    assert harness.owner.refused == [(publications[1], "E_BAD_MESSAGE PUB nope")]
    assert not harness.publisher.has_room()
    harness.transport.close()
    await asyncio.sleep(0)
    assert harness.owner.lost == [([publications[2]], None)]


async def test_an_answer_without_a_command_ends_the_connection():
    harness = PublisherHarness()
    harness.publish()
    harness.receive(frames.OK * 2)
    await asyncio.sleep(0)
    assert harness.transport.is_aborted
    ((publications, error),) = harness.owner.lost
    assert len(publications) == 1
    assert str(error) == "127.0.0.1:4150: nsqd sent an answer without a command"


async def test_the_answer_to_a_cancelled_publication_is_consumed():
    harness = PublisherHarness()
    publications = [harness.publish() for _ in range(2)]
    publications[0].future.cancel()
    assert publications[0].is_abandoned()
    harness.receive(frames.OK * 2)
    assert publications[1].future.result() is None


async def test_the_members_of_a_batch_share_one_answer():
    harness = PublisherHarness()
    members = [
        new_publication("t", b"PUB t\n", b"x", asyncio.get_running_loop().create_future(), 60.0) for _ in range(3)
    ]
    joined = new_publication("t", b"MPUB t\n", b"...", None, 60.0)
    joined.members = members
    assert not joined.is_abandoned()
    harness.publisher.publish(joined)
    harness.receive(frames.OK)
    assert all(states(members))
    assert joined.is_abandoned()
    failing = new_publication("t", b"MPUB t\n", b"...", None, 60.0)
    failing.members = [new_publication("t", b"PUB t\n", b"x", asyncio.get_running_loop().create_future(), 60.0)]
    failing.fail(ValueError("no"))
    with pytest.raises(ValueError):
        await failing.members[0].future


async def test_an_expired_publication_stays_queued_for_its_late_answer():
    harness = PublisherHarness()
    hasty, patient = harness.publish(timeout_s=5.0), harness.publish(timeout_s=50.0)
    assert earliest_deadline_s([hasty, patient]) == hasty.deadline_s
    assert harness.publisher.expire(hasty.deadline_s - 1) == hasty.deadline_s
    assert states([hasty, patient]) == [False, False]
    assert harness.publisher.expire(hasty.deadline_s + 1) == patient.deadline_s
    assert harness.publisher.count_under_way() == 1
    with pytest.raises(PublishTimedOut, match="after 5 s: 127.0.0.1:4150: nsqd did not answer; the message may"):
        await hasty.future
    harness.receive(frames.OK)
    assert not patient.future.done()
    assert harness.publisher.count_under_way() == 1
    harness.receive(frames.OK)
    assert patient.future.done()
    assert harness.publisher.expire(NEVER_S) == NEVER_S


async def test_the_members_of_a_batch_expire_separately():
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


async def test_the_time_without_a_due_answer_is_measured():
    harness = PublisherHarness()
    assert harness.publisher.unanswered_s(1e9) == 0.0
    publication = harness.publish()
    assert harness.publisher.unanswered_s(publication.created_s) <= 0.0
    harness.receive(frames.OK)
    assert harness.publisher.unanswered_s(1e9) == 0.0
