"""A killed daemon loses nothing that it had on disk; a stopped one loses nothing (rows 1-4, 16)."""

import crash
import pytest
from stage import DISK_ONLY, TOPIC, Stage

from daemons import write_metadata
from rawclient import OK, RawClient

pytestmark = pytest.mark.usefixtures("classic_store")

# Numbers of calls that change files, counted from when the topic has 80 messages and a consumer connects: the messages
# move to the channel, files fill up and are removed, and publishing continues.
FIRST_CALLS = (1, 3, 8, 34)


def test_a_kill_loses_only_messages_in_memory(stage: Stage) -> None:
    """Row 1: messages in memory are lost, as with Go; topic and channel exist, and no unknown message is delivered."""
    outcome = crash.kill_with_memory_queue(stage)
    assert (outcome.duplicated, outcome.foreign) == (0, 0)
    assert dict(outcome.seen) == {}
    assert "no usable metadata" not in stage.log
    assert f"TOPIC({TOPIC}): created" in stage.log


def test_a_kill_loses_no_message_that_overflowed_to_disk(stage: Stage) -> None:
    """Row 1: at most the messages in memory, the oldest ones, are lost."""
    outcome = crash.kill_with_overflow(stage, memory=100, count=500)
    assert (outcome.duplicated, outcome.foreign) == (0, 0)
    assert {int(body.split()[1]) for body in stage.tracker.lost} <= set(range(100))
    assert dict(outcome.seen) == {}


def test_a_kill_loses_no_message_on_disk(stage: Stage) -> None:
    """Row 2: nothing is lost, finished messages may be delivered again, and the depth is right."""
    outcome = crash.kill_with_disk_queue(stage)
    assert (outcome.lost, outcome.foreign) == (0, 0)
    assert outcome.duplicated <= 1250
    assert dict(outcome.seen) == {}


@pytest.mark.parametrize(
    "flags", [("--sync-timeout=20ms",), ("--sync-every=1",)], ids=["synced by time", "synced always"]
)
def test_a_kill_loses_no_unfinished_message(stage: Stage, flags: tuple[str, ...]) -> None:
    """Row 3: an unfinished message is not lost, whether in flight or deferred."""
    outcome = crash.kill_with_messages_in_flight(stage, *flags)
    assert (outcome.lost, outcome.foreign) == (0, 0)
    assert outcome.duplicated <= 100
    assert dict(outcome.seen) == {}


def test_a_new_channel_survives_a_kill_after_the_answer_to_sub(stage: Stage) -> None:
    """Row 42: messages published after the restart, before the consumer is back, reach the channel."""
    write_metadata(stage.data_path, {TOPIC: ["another"]})
    daemon = stage.nsqd(env={"NSQX_FAILPOINTS": "nsqd.rename=delay:300@2+"})
    stage.consumer(daemon)
    crash.kill(daemon)
    again = stage.nsqd()
    with RawClient(again.tcp_address) as client:
        assert client.pub(TOPIC, b"in between") == OK
    assert stage.consumer(again, ready=1).read_message().body == b"in between"


@pytest.mark.parametrize("flags", [("--sync-every=1",), ()], ids=["synced always", "synced by time"])
def test_a_new_topic_survives_a_kill_after_its_first_acknowledged_publish(stage: Stage, flags: tuple[str, ...]) -> None:
    """Row 42: nsqd.dat names the topic, so its messages are found."""
    daemon = stage.nsqd(DISK_ONLY, *flags, env={"NSQX_FAILPOINTS": "nsqd.rename=delay:300@2+"})
    with RawClient(daemon.tcp_address) as client:
        assert client.pub(TOPIC, b"the first") == OK
    crash.kill(daemon)
    assert stage.nsqd(DISK_ONLY).topic_stats(TOPIC)["depth"] == 1


def test_sub_is_answered_even_if_the_channel_cannot_be_saved(stage: Stage) -> None:
    """Row 42: SUB is answered, and /ping reports the failure."""
    daemon = stage.nsqd(env={"NSQX_FAILPOINTS": "nsqd.rename=fail:ENOSPC@2+"})
    stage.consumer(daemon)
    assert daemon.request("GET", "/ping").status == 500


@pytest.mark.parametrize("seed", range(2))
def test_a_kill_at_a_random_moment_loses_nothing(stage: Stage, seed: int) -> None:
    """Row 4: nothing is lost, and no file is set aside."""
    _assert_kept(stage, crash.kill_at_random(stage, seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 40))
def test_kills_at_many_random_moments_lose_nothing(stage: Stage, seed: int) -> None:
    """Row 4, more often."""
    _assert_kept(stage, crash.kill_at_random(stage, seed))


@pytest.mark.parametrize("number", FIRST_CALLS)
def test_a_kill_during_a_file_change_loses_nothing(stage: Stage, number: int) -> None:
    """Row 4: killed when a file is about to be written, renamed, removed or synced."""
    _assert_kept(stage, crash.kill_at_file_change(stage, number))


def test_a_kill_during_a_move_to_a_channel_loses_nothing(stage: Stage) -> None:
    """Row 4: a topic keeps a message until its channels have written it."""
    _assert_kept(stage, crash.kill_before_channel_write(stage))


@pytest.mark.slow
@pytest.mark.parametrize("number", [number for number in range(1, 60) if number not in FIRST_CALLS])
def test_a_kill_at_every_file_change_loses_nothing(stage: Stage, number: int) -> None:
    """Row 4, at each of the calls."""
    _assert_kept(stage, crash.kill_at_file_change(stage, number))


def test_temporary_files_of_a_killed_process_are_removed(stage: Stage) -> None:
    """Rows 4, 12: killed before a temporary file is renamed; the next start removes it."""
    outcome = crash.kill_at_file_change(stage, 1, calls="rename,renameat,renameat2")
    assert (outcome.lost, outcome.foreign) == (0, 0)
    assert not list(stage.data_path.glob("*.tmp"))


def test_a_stop_keeps_every_message(stage: Stage) -> None:
    """Row 16: every message is kept and delivered once, and a client that reads nothing does not delay the exit."""
    outcome = crash.stop_with_messages_everywhere(stage)
    assert (outcome.lost, outcome.duplicated, outcome.foreign) == (0, 0, 0)
    assert outcome.seen["exit"] == 0
    assert outcome.seen["seconds"] < 20  # --shutdown-timeout is 10 s


def test_a_stop_during_a_sync_keeps_every_message(stage: Stage) -> None:
    """Row 16: every message is kept, and the pending sync causes no error."""
    outcome = crash.stop_during_a_sync(stage)
    assert (outcome.lost, outcome.duplicated, outcome.foreign) == (0, 0, 0)
    assert dict(outcome.seen) == {"exit": 0, "internal errors": []}


def _assert_kept(stage: Stage, outcome: crash.Outcome) -> None:
    assert (outcome.lost, outcome.foreign) == (0, 0), sorted(stage.tracker.lost)
    assert "set aside" not in outcome.seen
    assert not list(stage.data_path.glob("*.bad"))
