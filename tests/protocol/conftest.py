"""The fixtures of conversations without sockets."""

from collections.abc import Callable
from pathlib import Path

import pytest
from conversation import Line, Talk

from broker_bench import Bench


@pytest.fixture
def make_bench(tmp_path: Path) -> Callable[..., Bench]:
    """Makes a broker with the given options."""
    return lambda **options: Bench(tmp_path, **options)


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench()


@pytest.fixture
def make_talk(bench: Bench) -> Callable[[], Talk]:
    return lambda: Talk(bench)


@pytest.fixture
def talk(bench: Bench) -> Talk:
    return Talk(bench)


@pytest.fixture
def line(bench: Bench) -> Line:
    return Line(bench)
