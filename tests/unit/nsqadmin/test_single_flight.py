"""Equal questions under way at the same time."""

import asyncio

import pytest

from nsqx.nsqadmin import single_flight as flights_module
from nsqx.nsqadmin.single_flight import Flights


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


async def share_in_turn(flights: Flights, question: Question, count: int) -> list["asyncio.Task[int]"]:
    tasks = [asyncio.create_task(flights.share("q", question.ask)) for _ in range(count)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


async def test_one_call_for_all_who_ask() -> None:
    flights, question = Flights(), Question()
    tasks = await share_in_turn(flights, question, 5)
    question.go.set()
    assert await asyncio.gather(*tasks) == [1] * 5
    assert await flights.share("q", question.ask) == 2


async def test_other_questions_are_others() -> None:
    flights, question = Flights(), Question()
    question.go.set()
    assert await asyncio.gather(flights.share(1, question.ask), flights.share(2, question.ask)) == [1, 2]


async def test_after_a_change_nobody_joins() -> None:
    flights, question = Flights(), Question()
    before = await share_in_turn(flights, question, 2)
    flights.forget()
    after = await share_in_turn(flights, question, 2)
    question.go.set()
    assert await asyncio.gather(*before, *after) == [1, 1, 2, 2]
    assert await flights.share("q", question.ask) == 3, "the older call's end does not hide the newer"


async def test_what_has_been_under_way_for_long_is_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights_module, "MAX_AGE_S", 0.0)
    flights, question = Flights(), Question()
    tasks = await share_in_turn(flights, question, 2)
    question.go.set()
    assert await asyncio.gather(*tasks) == [1, 2]


async def test_a_failure_is_shared() -> None:
    flights = Flights()

    async def fail() -> int:
        await asyncio.sleep(0)
        raise ValueError("no")

    outcomes = await asyncio.gather(*(flights.share("q", fail) for _ in range(3)), return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["no"] * 3


async def test_one_who_leaves_does_not_take_the_answer_along() -> None:
    flights, question = Flights(), Question()
    first, second = await share_in_turn(flights, question, 2)
    first.cancel()
    await asyncio.sleep(0)
    question.go.set()
    assert await second == 1
