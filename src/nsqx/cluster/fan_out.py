"""One question to several daemons at once. A daemon that fails does not affect the answers of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Concatenate, Generic, ParamSpec, TypeVar

from nsqx.cluster.daemon import DaemonClient
from nsqx.errors import RequestFailed

_D = TypeVar("_D", bound=DaemonClient)
_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Answers(Generic[_T]):
    """The answers to one question, each with the address of its daemon, and the failures."""

    found: list[tuple[str, _T]]
    failures: list[tuple[DaemonClient, RequestFailed]]

    @property
    def values(self) -> list[_T]:
        """The answers without addresses."""
        return [value for _, value in self.found]

    @property
    def problems(self) -> list[str]:
        """A text with the daemon and the reason for each failure."""
        return [f"{daemon}: {error.reason}" for daemon, error in self.failures]

    @property
    def plain_problems(self) -> list[str]:
        """The problems in plain words instead of Go's."""
        return [f"{daemon}: {error.plain}" for daemon, error in self.failures]

    def failure(self, kind: str) -> RequestFailed:
        """Return the error about the failures in the wording of Go's nsqadmin and nsq_stat."""
        reasons = "\n".join(str(error) for _, error in self.failures)
        return RequestFailed(reasons if self.found else f"failed to query any {kind}: {reasons}")

    def require_one(self) -> Answers[_T]:
        """Return the answers; raises RequestFailed if every daemon failed."""
        return self if self.found else self.require_all()

    def require_all(self) -> Answers[_T]:
        """Return the answers; raises RequestFailed if a daemon failed."""
        if self.failures:
            raise RequestFailed("; ".join(self.problems), plain="; ".join(self.plain_problems))
        return self


async def ask_all(
    daemons: Sequence[_D], ask: Callable[Concatenate[_D, _P], Awaitable[_T]], *args: _P.args, **kwargs: _P.kwargs
) -> Answers[_T]:
    """Call ``ask`` for every daemon. RequestFailed is the failure of a daemon; other exceptions are raised."""
    outcomes = await asyncio.gather(*(ask(daemon, *args, **kwargs) for daemon in daemons), return_exceptions=True)
    answers: Answers[_T] = Answers([], [])
    for daemon, outcome in zip(daemons, outcomes, strict=True):
        if isinstance(outcome, RequestFailed):
            answers.failures.append((daemon, outcome))
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            answers.found.append((daemon.address, outcome))
    return answers
