"""Fixtures for all tests. This file also puts tests/ on the import path: ``from daemons import Fleet``."""

import functools
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from daemons import Fleet

# The duration of an example depends on the machine, so it is not limited.
settings.register_profile("nsqx", deadline=None)
settings.load_profile("nsqx")

# The JVMs of the tests run for seconds. Their second compiler and their parallel collector would double the CPU time.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Long files, and folders of files with few long tests, run first. Run last, one of them would occupy one core while the
# others are idle.
_LONG_FIRST = (
    *("docs/test_snippets.py", "spark", "docs", "packaging", "soak", "faults", "fuzz", "browser", "bench", "interop"),
    *("integration/test_nsqadmin.py", "integration/test_demo.py", "integration"),
)

_topic_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests by the duration of their files, longest first."""
    items.sort(key=lambda item: _rank(item.path))


@functools.cache
def _rank(file: Path) -> int:
    path = file.relative_to(Path(__file__).parent)
    ranks = [rank for rank, long in enumerate(_LONG_FIRST) if path.is_relative_to(long)]
    return ranks[0] if ranks else len(_LONG_FIRST)


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """Daemons that end with the test."""
    daemons = Fleet()
    yield daemons
    daemons.close()


@pytest.fixture
def topic() -> str:
    """A topic name that no other test uses."""
    return f"topic_{next(_topic_numbers)}"
