"""A daemon that is killed loses nothing that it had on disk; one that is told to end loses nothing (rows 1-4, 16)."""

import crash
import pytest
from stage import DISK_ONLY, TOPIC, Stage

from daemons import write_metadata
from rawclient import OK, RawClient

# Calls that change files, counted from the moment the topic has 80 messages and a consumer arrives: the messages move
# to the channel, files fill up and are removed, and publishing goes on.
FIRST_CALLS = (1, 3, 8, 34)


def test_memory_queue(stage: Stage) -> None:
    """Row 1: what was in memory is gone, as with Go; topic and channel are there, and what comes is not made up."""
    outcome = crash.kill_with_memory_queue(stage)
    assert (outcome.duplicated, outcome.foreign) == (0, 0)
    assert dict(outcome.seen) == {}
    assert "no usable metadata" not in stage.log
    assert f"TOPIC({TOPIC}): created" in stage.log


def test_overflow_of_the_memory_queue(stage: Stage) -> None:
    """Row 1: at most the messages that were in memory are lost, which are the oldest."""
    outcome = crash.kill_with_overflow(stage, memory=100, count=500)
    assert (outcome.duplicated, outcome.foreign) == (0, 0)
    assert {int(body.split()[1]) for body in stage.ledger.lost} <= set(range(100))
    assert dict(outcome.seen) == {}


def test_disk_queue(stage: Stage) -> None:
    """Row 2: nothing is lost, what was finished may come again, and the depth is that of what comes."""
    outcome = crash.kill_with_disk_queue(stage)
    assert (outcome.lost, outcome.foreign) == (0, 0)
    assert outcome.duplicated <= 1250
    assert dict(outcome.seen) == {}


@pytest.mark.parametrize(
    "flags", [("--sync-timeout=20ms",), ("--sync-every=1",)], ids=["synced by time", "synced always"]
)
def test_messages_in_flight(stage: Stage, flags: tuple[str, ...]) -> None:
    """Row 3: a message that nobody has finished is not lost, whether in flight or deferred."""
    outcome = crash.kill_with_messages_in_flight(stage, *flags)
    assert (outcome.lost, outcome.foreign) == (0, 0)
    assert outcome.duplicated <= 100
    assert dict(outcome.seen) == {}


def test_a_new_channel_survives_from_the_answer_to_sub_on(stage: Stage) -> None:
    """Row 42: what is published after the restart, and before the consumer is back, reaches the channel."""
    write_metadata(stage.data_path, {TOPIC: ["another"]})
    daemon = stage.nsqd(env={"NSQX_FAILPOINTS": "nsqd.rename=delay:300@2+"})
    stage.consumer(daemon)
    crash.kill(daemon)
    again = stage.nsqd()
    with RawClient(again.tcp_address) as client:
        assert client.pub(TOPIC, b"in between") == OK
    assert stage.consumer(again, ready=1).read_message().body == b"in between"


@pytest.mark.parametrize("flags", [("--sync-every=1",), ()], ids=["synced always", "synced by time"])
def test_a_new_topic_survives_from_the_answer_to_its_first_publish_on(stage: Stage, flags: tuple[str, ...]) -> None:
    """Row 42: nsqd.dat names the topic, so its messages are found."""
    daemon = stage.nsqd(DISK_ONLY, *flags, env={"NSQX_FAILPOINTS": "nsqd.rename=delay:300@2+"})
    with RawClient(daemon.tcp_address) as client:
        assert client.pub(TOPIC, b"the first") == OK
    crash.kill(daemon)
    assert stage.nsqd(DISK_ONLY).topic_stats(TOPIC)["depth"] == 1


def test_sub_is_answered_though_the_channel_cannot_be_saved(stage: Stage) -> None:
    """Row 42: the answer comes, and /ping says that something is wrong."""
    daemon = stage.nsqd(env={"NSQX_FAILPOINTS": "nsqd.rename=fail:ENOSPC@2+"})
    stage.consumer(daemon)
    assert daemon.request("GET", "/ping").status == 500


@pytest.mark.parametrize("seed", range(2))
def test_any_moment(stage: Stage, seed: int) -> None:
    """Row 4: nothing is lost, and no file is set aside."""
    _assert_kept(stage, crash.kill_at_random(stage, seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 40))
def test_many_moments(stage: Stage, seed: int) -> None:
    """Row 4, more often."""
    _assert_kept(stage, crash.kill_at_random(stage, seed))


@pytest.mark.parametrize("number", FIRST_CALLS)
def test_change_of_files(stage: Stage, number: int) -> None:
    """Row 4: killed as a file is about to be written, renamed, removed or synced."""
    _assert_kept(stage, crash.kill_at_file_change(stage, number))


def test_on_the_way_to_a_channel(stage: Stage) -> None:
    """Row 4: a topic does not forget a message before its channels have written it."""
    _assert_kept(stage, crash.kill_before_channel_write(stage))


@pytest.mark.slow
@pytest.mark.parametrize("number", [number for number in range(1, 60) if number not in FIRST_CALLS])
def test_every_change_of_files(stage: Stage, number: int) -> None:
    """Row 4, at each of them."""
    _assert_kept(stage, crash.kill_at_file_change(stage, number))


def test_no_temporary_files_stay_behind(stage: Stage) -> None:
    """Rows 4, 12: killed as a temporary file is about to be renamed, which the next start then removes."""
    outcome = crash.kill_at_file_change(stage, 1, calls="rename,renameat,renameat2")
    assert (outcome.lost, outcome.foreign) == (0, 0)
    assert not list(stage.data_path.glob("*.tmp"))


def test_told_to_end(stage: Stage) -> None:
    """Row 16: everything is kept and comes once, and a client that reads nothing does not hold up the exit."""
    outcome = crash.stop_with_messages_everywhere(stage)
    assert (outcome.lost, outcome.duplicated, outcome.foreign) == (0, 0, 0)
    assert outcome.seen["exit"] == 0
    assert outcome.seen["seconds"] < 20  # --shutdown-timeout is 10 s


def test_told_to_end_during_a_sync(stage: Stage) -> None:
    """Row 16: everything is kept, and nsqd does not stumble over what it was about to do."""
    outcome = crash.stop_during_a_sync(stage)
    assert (outcome.lost, outcome.duplicated, outcome.foreign) == (0, 0, 0)
    assert dict(outcome.seen) == {"exit": 0, "internal errors": []}


def _assert_kept(stage: Stage, outcome: crash.Outcome) -> None:
    assert (outcome.lost, outcome.foreign) == (0, 0), sorted(stage.ledger.lost)
    assert "set aside" not in outcome.seen
    assert not list(stage.data_path.glob("*.bad"))
