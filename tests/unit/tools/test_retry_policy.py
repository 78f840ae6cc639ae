from typing import Any

import pytest

from nsqx.tools.retry_policy import RetryPolicy


class Message:
    def __init__(self, attempts: int) -> None:
        self.id = b"0123456789abcdef"
        self.attempts = attempts
        self.answer = ""

    def finish(self) -> None:
        self.answer = "finished"

    def requeue(self) -> None:
        self.answer = "requeued"


def answer(options: dict[str, Any], how: str, attempts: int) -> str:
    message = Message(attempts)
    getattr(RetryPolicy(options), how)(message, "reason")
    return message.answer


def test_messages_are_requeued_while_the_destination_is_unreachable() -> None:
    assert answer({}, "unreachable", 65535) == "requeued"


@pytest.mark.parametrize(("attempts", "expected"), [(1, "requeued"), (4, "requeued"), (5, "finished"), (9, "finished")])
def test_a_refused_message_is_finished_after_five_attempts(attempts: int, expected: str) -> None:
    assert answer({}, "refused", attempts) == expected


def test_max_attempts_sets_the_limit() -> None:
    options = {"max_attempts": 2}
    assert answer(options, "refused", 1) == "requeued"
    assert answer(options, "refused", 2) == "finished"
    assert options == {"max_attempts": 2}  # the client library has the same limit
    assert answer({"max_attempts": 0}, "refused", 1000) == "requeued"


def test_the_client_library_gets_no_limit_by_default() -> None:
    options: dict[str, Any] = {}
    RetryPolicy(options)
    assert options == {"max_attempts": 0}
