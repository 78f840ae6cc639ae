"""Concurrent equal queries share one answer."""

import asyncio

import pytest

from nsqx.nsqadmin import single_flight as flights_module
from nsqx.nsqadmin.single_flight import SingleFlight


class Question:
    """A query that finishes when it is released."""

    def __init__(self) -> None:
        self.calls = 0
        self.go = asyncio.Event()

    async def ask(self) -> int:
        self.calls += 1
        number = self.calls
        await self.go.wait()
        return number


async def share_in_turn(single_flight: SingleFlight, question: Question, count: int) -> list["asyncio.Task[int]"]:
    tasks = [asyncio.create_task(single_flight.share("q", question.ask)) for _ in range(count)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


async def test_concurrent_callers_share_one_call() -> None:
    single_flight, question = SingleFlight(), Question()
    tasks = await share_in_turn(single_flight, question, 5)
    question.go.set()
    assert await asyncio.gather(*tasks) == [1] * 5
    assert await single_flight.share("q", question.ask) == 2


async def test_different_questions_are_not_shared() -> None:
    single_flight, question = SingleFlight(), Question()
    question.go.set()
    assert await asyncio.gather(single_flight.share(1, question.ask), single_flight.share(2, question.ask)) == [1, 2]


async def test_callers_after_a_change_start_a_new_call() -> None:
    single_flight, question = SingleFlight(), Question()
    before = await share_in_turn(single_flight, question, 2)
    single_flight.forget()
    after = await share_in_turn(single_flight, question, 2)
    question.go.set()
    assert await asyncio.gather(*before, *after) == [1, 1, 2, 2]
    assert await single_flight.share("q", question.ask) == 3, "the end of the older call does not remove the newer one"


async def test_an_old_call_is_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights_module, "MAX_AGE_S", 0.0)
    single_flight, question = SingleFlight(), Question()
    tasks = await share_in_turn(single_flight, question, 2)
    question.go.set()
    assert await asyncio.gather(*tasks) == [1, 2]


async def test_a_failure_is_shared() -> None:
    single_flight = SingleFlight()

    async def fail() -> int:
        await asyncio.sleep(0)
        raise ValueError("no")

    outcomes = await asyncio.gather(*(single_flight.share("q", fail) for _ in range(3)), return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["no"] * 3


async def test_a_cancelled_caller_does_not_cancel_the_call() -> None:
    single_flight, question = SingleFlight(), Question()
    first, second = await share_in_turn(single_flight, question, 2)
    first.cancel()
    await asyncio.sleep(0)
    question.go.set()
    assert await second == 1
