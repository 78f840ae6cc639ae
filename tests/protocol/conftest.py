"""Fixtures for protocol tests without sockets."""

from collections.abc import Callable
from pathlib import Path

import pytest
from conversation import ConnectionClient, SessionClient

from broker_bench import Bench


@pytest.fixture
def make_bench(tmp_path: Path) -> Callable[..., Bench]:
    """Return a function that creates a broker with the given options."""
    return lambda **options: Bench(tmp_path, **options)


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench()


@pytest.fixture
def make_talk(bench: Bench) -> Callable[[], SessionClient]:
    return lambda: SessionClient(bench)


@pytest.fixture
def talk(bench: Bench) -> SessionClient:
    return SessionClient(bench)


@pytest.fixture
def line(bench: Bench) -> ConnectionClient:
    return ConnectionClient(bench)
