"""Equal questions under way at the same time."""

import asyncio

import pytest

from nsqx.nsqadmin import single_flight as flights_module
from nsqx.nsqadmin.single_flight import SingleFlight


class Question:
    """Something that takes until it is let go."""

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


async def test_one_call_for_all_who_ask() -> None:
    single_flight, question = SingleFlight(), Question()
    tasks = await share_in_turn(single_flight, question, 5)
    question.go.set()
    assert await asyncio.gather(*tasks) == [1] * 5
    assert await single_flight.share("q", question.ask) == 2


async def test_other_questions_are_others() -> None:
    single_flight, question = SingleFlight(), Question()
    question.go.set()
    assert await asyncio.gather(single_flight.share(1, question.ask), single_flight.share(2, question.ask)) == [1, 2]


async def test_after_a_change_nobody_joins() -> None:
    single_flight, question = SingleFlight(), Question()
    before = await share_in_turn(single_flight, question, 2)
    single_flight.forget()
    after = await share_in_turn(single_flight, question, 2)
    question.go.set()
    assert await asyncio.gather(*before, *after) == [1, 1, 2, 2]
    assert await single_flight.share("q", question.ask) == 3, "the older call's end does not hide the newer"


async def test_what_has_been_under_way_for_long_is_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_one_who_leaves_does_not_take_the_answer_along() -> None:
    single_flight, question = SingleFlight(), Question()
    first, second = await share_in_turn(single_flight, question, 2)
    first.cancel()
    await asyncio.sleep(0)
    question.go.set()
    assert await second == 1
