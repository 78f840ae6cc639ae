"""pytest fixtures: ``pytest_plugins = ["nsqx.testing.fixtures"]`` in the top-level conftest.py of a project.

nsq_broker: a LocalBroker for one test.
start_nsq_broker: a function that starts LocalBrokers with flags, which end with the test.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from nsqx.testing.local_broker import LocalBroker


@pytest.fixture
def start_nsq_broker() -> Iterator[Callable[..., LocalBroker]]:
    """Return a function that starts a LocalBroker with its arguments. All of them end with the test."""
    with ExitStack() as started:

        def start(**arguments: object) -> LocalBroker:
            return started.enter_context(LocalBroker(**arguments))  # type: ignore[arg-type]

        yield start


@pytest.fixture
def nsq_broker() -> Iterator[LocalBroker]:
    """Return a LocalBroker that ends with the test."""
    with LocalBroker() as broker:
        yield broker
