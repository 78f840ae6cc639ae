"""Fixtures that every kind of test shares. Being here puts tests/ on the import path: ``from daemons import Fleet``."""

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import settings

from daemons import Fleet

# How long an example takes is a matter of the machine, and no property of the code.
settings.register_profile("nsqx", deadline=None)
settings.load_profile("nsqx")

_topic_numbers = itertools.count(1)


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """Starts daemons that end with the test."""
    daemons = Fleet()
    yield daemons
    daemons.close()


@pytest.fixture
def topic() -> str:
    """A topic name that no other test uses."""
    return f"topic_{next(_topic_numbers)}"
