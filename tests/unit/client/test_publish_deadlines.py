"""The timer of publish deadlines checks at the earliest deadline, and only then."""

import asyncio
from time import monotonic, sleep

from nsqx.client.deadlines import Deadlines
from nsqx.client.publisher import NEVER_S


class CheckedDeadlines:
    """A list of deadlines, and the times when they were checked."""

    def __init__(self, *next_s):
        self.next_s = list(next_s)
        self.checked_at_s = []
        self.is_done = asyncio.Event()
        self.deadlines = Deadlines(asyncio.get_running_loop(), self.expire)

    def expire(self, now_s):
        self.checked_at_s.append(now_s)
        if self.next_s:
            return self.next_s.pop(0)
        self.is_done.set()
        return NEVER_S


async def test_deadlines_are_checked_at_the_earliest_and_then_at_the_next():
    start_s = monotonic()
    checked = CheckedDeadlines(start_s + 0.06)
    checked.deadlines.watch(start_s + 5)
    checked.deadlines.watch(start_s + 0.02)
    assert checked.deadlines.earliest_s == start_s + 0.02
    await checked.is_done.wait()
    assert len(checked.checked_at_s) == 2
    assert checked.checked_at_s[1] >= start_s + 0.05
    assert checked.deadlines.earliest_s == NEVER_S


async def test_nothing_is_checked_after_close():
    checked = CheckedDeadlines()
    checked.deadlines.watch(monotonic() + 0.01)
    checked.deadlines.close()
    assert checked.deadlines.earliest_s == NEVER_S
    await asyncio.sleep(0.05)
    assert checked.checked_at_s == []


async def test_a_late_timer_reads_sockets_before_it_checks():
    checked = CheckedDeadlines()
    checked.deadlines.watch(monotonic() + 0.01)
    sleep(0.2)  # noqa: ASYNC251
    reading = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.001, reading.set_result, None)
    await checked.is_done.wait()
    assert reading.done()


async def test_a_passed_deadline_is_checked_at_once():
    checked = CheckedDeadlines()
    checked.deadlines.watch(monotonic() - 100)
    async with asyncio.timeout(20):
        await checked.is_done.wait()
