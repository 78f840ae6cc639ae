"""The timer of publish deadlines: when it looks, and when it does not."""

import asyncio
from time import monotonic, sleep

from nsqx.client.deadlines import Deadlines
from nsqx.client.publisher import NEVER_S


class Due:
    """Deadlines to come, and when they were looked at."""

    def __init__(self, *next_s):
        self.next_s = list(next_s)
        self.looked_at_s = []
        self.is_done = asyncio.Event()
        self.deadlines = Deadlines(asyncio.get_running_loop(), self.expire)

    def expire(self, now_s):
        self.looked_at_s.append(now_s)
        if self.next_s:
            return self.next_s.pop(0)
        self.is_done.set()
        return NEVER_S


async def test_it_looks_at_the_earliest_deadline_and_then_at_the_next():
    start_s = monotonic()
    due = Due(start_s + 0.06)
    due.deadlines.watch(start_s + 5)
    due.deadlines.watch(start_s + 0.02)
    assert due.deadlines.earliest_s == start_s + 0.02
    await due.is_done.wait()
    assert len(due.looked_at_s) == 2
    assert due.looked_at_s[1] >= start_s + 0.05
    assert due.deadlines.earliest_s == NEVER_S


async def test_it_does_not_look_after_the_end():
    due = Due()
    due.deadlines.watch(monotonic() + 0.01)
    due.deadlines.close()
    assert due.deadlines.earliest_s == NEVER_S
    await asyncio.sleep(0.05)
    assert due.looked_at_s == []


async def test_a_timer_that_the_loop_held_up_lets_answers_in_first():
    due = Due()
    due.deadlines.watch(monotonic() + 0.01)
    sleep(0.2)  # noqa: ASYNC251
    reading = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.001, reading.set_result, None)
    await due.is_done.wait()
    assert reading.done()


async def test_a_deadline_that_has_passed_is_looked_at_at_once():
    due = Due()
    due.deadlines.watch(monotonic() - 100)
    async with asyncio.timeout(20):
        await due.is_done.wait()
