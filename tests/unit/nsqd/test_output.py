"""The output of a client: parts that wait for commits, in order, and the error of a failed commit."""

import pytest

from broker_bench import split_frames
from nsqx.errors import DiskQueueError
from nsqx.nsqd.group_commit import Commit
from nsqx.nsqd.output import OutputBuffer
from nsqx.wire import frames
from rawclient import ERROR, RESPONSE, Frame


@pytest.fixture
def output():
    return OutputBuffer()


def end(commit, failure=None):
    commit.is_done, commit.failure = True, failure


def test_unsealed_frames_are_released_once(output):
    output.frames += b"data"
    assert output.release() == b"data"
    assert output.release() == b""


def test_sealed_frames_wait_for_their_commit_and_earlier_ones_do_not(output):
    commit = Commit()
    output.frames += b"before"
    output.seal(commit, "PUB")
    output.frames += b"answer"
    assert output.is_held
    assert output.release() == b"before"
    assert output.release() == b""
    end(commit)
    assert output.release() == b"answer"
    assert not output.is_held


def test_a_second_seal_for_the_same_commit_changes_nothing(output):
    commit = Commit()
    assert output.seal(commit, "PUB") is True
    output.frames += b"1"
    assert output.seal(commit, "PUB") is False
    output.frames += b"2"
    end(commit)
    assert output.release() == b"12"


def test_answers_keep_their_order_even_if_a_later_commit_is_done_first(output):
    first, second = Commit(), Commit()
    output.seal(first, "PUB")
    output.frames += b"1"
    output.seal(second, "PUB")
    output.frames += b"2"
    end(second)
    assert output.release() == b""
    output.frames += b"3"
    end(first)
    assert output.release() == b"123"


def test_an_answer_is_released_while_a_later_one_waits(output):
    first, second = Commit(), Commit()
    output.seal(first, "PUB")
    output.frames += b"1"
    output.seal(second, "PUB")
    output.frames += b"2"
    end(first)
    assert output.release() == b"1"
    assert output.is_held
    end(second)
    assert output.release() == b"2"


@pytest.mark.parametrize("command", ["PUB", "MPUB", "DPUB"])
@pytest.mark.parametrize("is_followed", [False, True])
def test_a_failed_commit_replaces_all_later_answers_by_the_error(output, command, is_followed):
    commit, other = Commit(), Commit()
    output.frames += frames.HEARTBEAT
    output.seal(commit, command)
    output.frames += frames.OK + frames.OK
    if is_followed:
        output.seal(other, "PUB")
        output.frames += frames.OK
    end(commit, DiskQueueError("No space left on device"))
    assert split_frames(bytes(output.release())) == [
        Frame(RESPONSE, b"_heartbeat_"),
        Frame(ERROR, f"E_{command}_FAILED {command} failed No space left on device".encode()),
    ]
    assert output.has_failed
    assert not output.is_held
