"""Runs a test under asyncio's own event loop and under uvloop."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

_FACTORIES = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def both_loops(scenario: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Turn a coroutine function into a test that runs under each loop; its parameters are fixtures as usual."""

    def test(loop: str, **fixtures: Any) -> None:
        with asyncio.Runner(loop_factory=_FACTORIES[loop]) as runner:
            runner.run(scenario(**fixtures))

    fixtures = inspect.signature(scenario).parameters.values()
    loop = inspect.Parameter("loop", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    test.__signature__ = inspect.Signature([loop, *fixtures])  # type: ignore[attr-defined]
    test.__name__ = scenario.__name__
    test.__doc__ = scenario.__doc__
    return pytest.mark.parametrize("loop", _FACTORIES)(test)
