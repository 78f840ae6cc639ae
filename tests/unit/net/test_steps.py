"""Long jobs in steps: all at once, a bounded number per turn of the loop, and several jobs in turn."""

import asyncio

import pytest

from loop_turns import Progress
from nsqx.net import steps
from nsqx.net.steps import STEPS_PER_TURN, StepScheduler, finish


def counting(done, count):
    """A job that records each of its steps in ``done``."""
    for number in range(count):
        done.append(number)
        yield
    return "result"


def test_finish_runs_every_step():
    done = []
    assert finish(counting(done, 1000)) == "result"
    assert len(done) == 1000


async def test_a_long_job_yields_to_the_loop():
    done = []
    progress = Progress(lambda: len(done))
    assert await progress.watch(StepScheduler().run(counting(done, 10 * STEPS_PER_TURN))) == "result"
    assert len(done) == 10 * STEPS_PER_TURN
    assert progress.longest <= STEPS_PER_TURN


async def test_a_turn_is_limited_in_time(monkeypatch):
    monkeypatch.setattr(steps, "TURN_NS", 0)
    done = []
    progress = Progress(lambda: len(done))
    await progress.watch(StepScheduler().run(counting(done, 50)))
    assert progress.longest == 1


async def test_a_short_job_finishes_at_once(monkeypatch):
    monkeypatch.setattr(steps, "TURN_NS", 60_000_000_000)
    done = []
    job = StepScheduler().run(counting(done, STEPS_PER_TURN - 1))
    with pytest.raises(StopIteration) as end:
        job.send(None)
    assert end.value.value == "result"
    assert len(done) == STEPS_PER_TURN - 1


async def test_concurrent_jobs_take_turns():
    """Each turn of the loop continues one job, and no job waits for the end of another."""
    turns, done = StepScheduler(), [[] for _ in range(5)]
    jobs = [asyncio.ensure_future(turns.run(counting(each, 1000), steps_per_turn=10)) for each in done]
    await asyncio.sleep(0)
    progress = Progress(lambda: sum(map(len, done)))
    progress_of_first = Progress(lambda: len(done[0]) - min(map(len, done)))
    await asyncio.gather(progress.watch(asyncio.gather(*jobs)), progress_of_first.watch(asyncio.wait(jobs)))
    assert progress.longest <= 10
    assert progress_of_first.longest <= 10


async def test_a_cancelled_job_does_not_block_the_others():
    turns, done = StepScheduler(), []
    cancelled = asyncio.ensure_future(turns.run(counting([], 1000), steps_per_turn=10))
    other = asyncio.ensure_future(turns.run(counting(done, 1000), steps_per_turn=10))
    await asyncio.sleep(0)
    cancelled.cancel()
    async with asyncio.timeout(10):
        assert await other == "result"
    assert len(done) == 1000
    assert cancelled.cancelled()
